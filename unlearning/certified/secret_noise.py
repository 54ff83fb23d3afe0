"""Noise that is a function of a secret: the same release done again is the same, and no other one meets its noise.

    secret    32 random bytes, made once for a federation
    key       HMAC-SHA256(secret, what is released)              32 bytes a release
    stream    ChaCha20 (RFC 8439) under the key, counter and nonce 0
    normal    pairs of 64 bits of it → two uniform numbers → Box and Muller's two normal ones

A key is used once, for one stream. Without the secret the stream is as good as random (HMAC-SHA256 as a
pseudorandom function, ChaCha20 as a generator), so what is proven of Gaussian noise holds but for that advantage. What
stays: the numbers are floating-point ones, with gaps, and end at 8.6 standard deviations. An attack on these gaps
(Mironov, On Significance of the Least Significant Bits for Differential Privacy) is not defended against.
"""

import hashlib
import hmac
import math
from contextlib import suppress
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from unlearning.certified.sealed_vectors import create_key, read_key
from unlearning.errors import ConfigurationError

_BLOCK = 2**16
"""Pairs of numbers that are drawn at a time: 1 MiB of the stream."""


def noise_secret(path: Path) -> bytes:
    """Return the secret in `path`, which is made where there is none; its owner alone may read it (mode
    0600).

    Raises:
        ConfigurationError: it cannot be read, others may read it, or it is no secret.
    """
    if not path.exists():
        with suppress(ConfigurationError):  # another process has made it at this very moment
            create_key(path)
    return read_key(path)


def derived_key(secret: bytes, *what: str) -> bytes:
    """Return a key (32 bytes) for exactly `what`; other texts, or the same ones divided otherwise, have
    another.
    """
    message = b"".join(len(part.encode()).to_bytes(8, "big") + part.encode() for part in what)
    return hmac.new(secret, message, hashlib.sha256).digest()


class KeyedNormal:
    """Numbers in float64 that a key of 32 bytes decides, one after another, as a generator gives."""

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def uniform(self, size: int) -> NDArray[np.float64]:
        """Return the next `size` numbers (size,) between 0 and 1, uniformly distributed and neither of the two."""
        drawn = np.frombuffer(self._stream.update(bytes(8 * size)), dtype="<u8")
        # 53 bits and a half: never 0, whose logarithm is infinite
        uniform: NDArray[np.float64] = ((drawn >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return uniform

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """Return the next `size` standard normal numbers (size,)."""
        normal = np.empty(size + size % 2)
        for start in range(0, len(normal), 2 * _BLOCK):
            part = normal[start : start + 2 * _BLOCK]
            uniform = self.uniform(len(part))
            radius = np.sqrt(-2 * np.log(uniform[0::2]))
            angle = 2 * math.pi * uniform[1::2]
            part[0::2], part[1::2] = radius * np.cos(angle), radius * np.sin(angle)
        return normal[:size]
