"""Training rounds in 16 bits on their way: half the bytes, for a rounding error that is known.

The server's model θ stays as it is. A client is sent θ rounded, R(θ), trains from that to θ_i and answers
R(θ_i − R(θ)), which the server adds to θ. So on the way back an update is rounded and not a model, and rounding errors
do not add up in θ over the rounds.

Each number is off by at most the share u of it: u = 2⁻⁸ in bfloat16, 2⁻¹¹ in float16; float16 is off by up to 3e-8
below 6.1e-5 instead. What would overflow travels as it is.

Of messages only those that ask to train are rounded, and of their arrays only the model. What a method exchanges or
prepares, and a model that is measured, travels as it is.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unlearning.errors import UpdateRefused
from unlearning.parameters import CHUNK, Vector, parts
from unlearning.runtime.spool import SpoolFile

WIRE_DTYPES: Mapping[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_BITS = np.dtype("<i2")


def largest_error(wire_dtype: str) -> float:
    """Return the largest share of a number by which rounding moves it."""
    return torch.finfo(WIRE_DTYPES[wire_dtype]).eps / 2


def rounded_bits(
    numbers: Vector, wire_dtype: str, *, minus: Vector | None = None
) -> NDArray[np.int16] | None:
    """Return the bits of `numbers` (d,), or of their difference from `minus` (d,), in a wire dtype.

    None where one of them that is finite would overflow.
    """
    found = np.empty(len(numbers), _BITS)
    for part in parts(len(numbers)):
        exact = np.array(numbers[part]) if minus is None else numbers[part] - minus[part]
        rounded = torch.from_numpy(exact).to(WIRE_DTYPES[wire_dtype])
        if not rounded.isfinite().all() and np.isfinite(exact).all():
            return None
        found[part] = rounded.view(torch.int16).numpy()
    return found


def read_bits(
    bits: NDArray[Any], wire_dtype: str, *, like: Vector, add: bool = False, spool: Path | None = None
) -> Vector:
    """Return the numbers of these bits (d,) in the dtype of `like` (d,), added to `like` on demand.

    spool: the directory of the file that holds them where they are many; without one they are in memory.

    Raises:
        UpdateRefused: they are not the bits of so many numbers.
        OSError: the spool has no room.
    """
    if bits.dtype != _BITS or bits.shape != like.shape:
        raise UpdateRefused(
            f"A model of shape {like.shape} was expected in {wire_dtype}; got shape {bits.shape}, type {bits.dtype}.",
            code="bad-wire-dtype",
        )
    dtype = torch.from_numpy(np.empty(0, like.dtype)).dtype
    file = SpoolFile(spool, like.nbytes) if spool is not None and bits.size > CHUNK else None
    found = np.empty(bits.size if file is None else 0, like.dtype)
    for part in parts(bits.size):
        numbers = torch.from_numpy(np.array(bits[part])).view(WIRE_DTYPES[wire_dtype]).to(dtype).numpy()
        exact = like[part] + numbers if add else numbers
        if file is None:
            found[part] = exact
        else:
            file.extend(exact.view(np.uint8).data)
    return found if file is None else np.frombuffer(file.mapped(), like.dtype)
