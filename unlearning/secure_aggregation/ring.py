"""Real vectors in the ring of the integers modulo 2^64, clipped and in fixed point, and masks in the same ring.

    q(x) = round(s · x) mod 2^64        s the largest power of two with  n · w · c · s ≤ 2^62

n clients, each with a vector of norm at most w · c, cannot overflow, and s is known before a round.
The error of a sum is at most n / (2 s) a coordinate. Of 2^32 values too few would be left for weights.
"""

import math
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from unlearning.errors import DataError

Ring: TypeAlias = NDArray[np.uint64]
"""Integers modulo 2^64."""

FINEST = 2**-20
"""A rounding error is at most this share of the clip norm a coordinate of the mean."""
_BLOCK = 2**14  # words of all masks that are made at once: 128 KiB, which stay in the processor's cache


def scale_of(num_clients: int, max_weight: float, clip_norm: float) -> float:
    """Return s, the steps of fixed point in 1.0."""
    return 2.0 ** math.floor(62 - math.log2(num_clients * max_weight * clip_norm))


def is_fine(num_clients: int, max_weight: float) -> bool:
    """Tell whether fixed point is as fine as `FINEST` where each weight is at least 1."""
    return scale_of(num_clients, max_weight, 1.0) >= 0.5 / FINEST


def clipped(
    vector: NDArray[np.floating], norm: float, free: NDArray[np.intp]
) -> tuple[NDArray[np.float64], bool]:
    """Return a vector (d,) shortened to the L2 norm, and whether it was longer.

    free: positions of buffers, which are no part of the norm; each is cut to −norm … norm.

    Raises:
        DataError: a value is not finite.
    """
    found = vector.astype(np.float64)
    if not np.isfinite(found).all():
        raise DataError("The update has values that are no finite numbers; it cannot be part of a sum.")
    buffers, found[free] = found[free], 0.0
    length = float(np.linalg.norm(found))
    if length > norm:
        found *= norm / length
    cut = np.clip(buffers, -norm, norm)
    found[free] = cut
    return found, length > norm or bool((cut != buffers).any())


def to_ring(values: NDArray[np.float64], scale: float) -> Ring:
    """Return values (d,) in fixed point."""
    return np.rint(values * scale).astype(np.int64).view(np.uint64)


def from_ring(values: Ring, scale: float) -> NDArray[np.float64]:
    """Return the values (d,) that a sum in fixed point is."""
    return values.view(np.int64).astype(np.float64) / scale


def add_masks(values: Ring, seeds: Iterable[tuple[bytes, bool]]) -> None:
    """Add the ChaCha20 key stream of each seed (32 bytes) to `values` (d,), or subtract it where True, in place."""
    streams = [
        (Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor(), np.subtract if is_negative else np.add)
        for seed, is_negative in seeds
    ]
    longest = 8 * min(_BLOCK, values.size)
    zeros, made = memoryview(bytes(longest)), memoryview(bytearray(longest))
    mask = np.frombuffer(made, dtype="<u8")
    for start in range(0, values.size, _BLOCK):
        part = values[start : start + _BLOCK]
        size = part.size
        for stream, add in streams:
            stream.update_into(zeros[: 8 * size], made[: 8 * size])
            add(part, mask[:size], out=part)
