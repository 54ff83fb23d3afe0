"""What others send, read strictly: lines for the log, JSON, arrays.

Every answer of a client and payload of a peer is read by these functions. Each knows from a few bytes
how much room the rest will take, refuses what does not fit before it makes that room, and raises `UpdateRefused`.
"""

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import FlowerUnlearningError, UpdateRefused
from unlearning.one_line import as_line

MAX_JSON_BYTES = 2**24
"""Of one message: room for a list of a million sample ids of a dozen characters."""
SITE_REQUESTS, SITE_REQUEST_BYTES = 20, 14 * 2**20
"""The most requests filed at a site, and bytes of their JSON, that travel with one answer; the others go with the next
ones. What else is in the answer fits into the rest of `MAX_JSON_BYTES`."""
MAX_JSON_ITEMS = 2_000_000
MAX_JSON_CONTAINERS = 100_000
MAX_JSON_DEPTH = 32
MAX_JSON_DIGITS = 19
"""An integer of more digits fits no 64-bit number."""

DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        "|b1",
        "|i1",
        "|u1",
        *(f"<{kind}{size}" for kind in "iu" for size in (2, 4, 8)),
        "<f2",
        "<f4",
        "<f8",
    )
}
"""The types of numbers that may travel, by the name they travel under."""
MAX_DIMENSIONS = 8
MAX_EXTENT = 2**40
MAX_ARRAYS = 10_000
"""In one message."""

_NPY = re.compile(
    rb"\{'descr': '([<|][a-z][0-9]{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,13}, ?){0,9}(?:[0-9]{1,13})?)\), \} *\n"
)
_NPY_MAGIC, _NPY_HEADER_BYTES = b"\x93NUMPY\x01\x00", 1024


def reason_of(error: BaseException) -> str:
    """Return why an answer is refused, in one line: in this project's words, or by the kind of what went wrong."""
    if isinstance(error, FlowerUnlearningError):
        return as_line(str(error))
    return as_line(f"It cannot be read: {type(error).__name__}: {error}")


def json_object(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object that `text` is.

    NaN and infinity are let through, for a loss may be one.

    Raises:
        UpdateRefused: it is none; or too long, too deep, has a name twice, an integer that fits no 64 bits, or
            characters that cannot be written down.
    """
    if len(text) > MAX_JSON_BYTES:
        raise UpdateRefused(f"It carries JSON of {len(text):,} bytes; {MAX_JSON_BYTES:,} are allowed.")
    try:
        whole = text.decode() if isinstance(text, bytes) else text
        if whole.count("[") + whole.count("{") > MAX_JSON_CONTAINERS or whole.count(",") > MAX_JSON_ITEMS:
            raise UpdateRefused(
                f"It carries JSON of more than {MAX_JSON_CONTAINERS:,} lists and objects or {MAX_JSON_ITEMS:,} items."
            )
        value = json.loads(whole, parse_int=_integer, object_pairs_hook=_object)
    except (ValueError, RecursionError) as exc:
        raise UpdateRefused(
            f"It carries malformed JSON: {as_line(str(exc), 100)}.", code="malformed-json"
        ) from exc
    if not isinstance(value, dict):
        raise UpdateRefused("Its JSON is not an object.", code="malformed-json")
    _check_values(value)
    return value


def npy_array(data: bytes, *, max_size: int | None = None) -> NDArray[Any]:
    """Return the numbers in `data`, which is what `numpy.save` makes of an array in memory.

    max_size: how many numbers there may be; what holds more is refused before room is made for it.

    Raises:
        UpdateRefused: it is no such array of numbers, or it has another number of bytes than its shape says.
    """
    length = int.from_bytes(data[8:10], "little")
    if not data.startswith(_NPY_MAGIC) or length > _NPY_HEADER_BYTES:
        raise UpdateRefused("An array's bytes do not begin with the header of an array.")
    header = _NPY.fullmatch(data, 10, min(10 + length, len(data)))
    if header is None:
        raise UpdateRefused("An array's header is not that of an array of numbers.")
    shape = tuple(int(size) for size in re.findall(rb"[0-9]+", header[3]))
    dtype = check_dtype(header[1].decode())
    size = check_size(shape, dtype, max_size=max_size) // dtype.itemsize
    if size * dtype.itemsize != len(data) - header.end():
        raise UpdateRefused(
            f"An array of shape {shape} and type {dtype} comes with {len(data) - header.end():,} bytes."
        )
    order = "F" if header[2] == b"True" else "C"
    return array_of(data, dtype, shape, start=header.end(), order=order)


def array_of(
    data: bytes | bytearray | mmap,
    dtype: np.dtype[Any],
    shape: Sequence[int],
    *,
    start: int = 0,
    order: str = "C",
) -> NDArray[Any]:
    """Return the numbers in `data` from `start` on, in this machine's byte order; they can only be read.

    Raises:
        UpdateRefused: truth values are neither 0 nor 1.
    """
    flat = np.frombuffer(data, dtype=dtype, offset=start)
    if dtype.kind == "b" and (flat.view(np.uint8) > 1).any():
        raise UpdateRefused("An array of truth values holds something else.")
    found: NDArray[Any] = flat.reshape(tuple(shape), order="F" if order == "F" else "C")
    found.flags.writeable = False  # it may lie in a file, and somebody else may have it too
    return found.astype(dtype.newbyteorder("="), copy=False) if sys.byteorder == "big" else found


def check_dtype(name: str) -> np.dtype[Any]:
    """Return the type of numbers of that name.

    Raises:
        UpdateRefused: it may not travel.
    """
    if name not in DTYPES:
        raise UpdateRefused(
            f"An array is of dtype {as_line(name, 40)!r}; allowed are {', '.join(DTYPES)}.", code="dtype"
        )
    return DTYPES[name]


def check_size(shape: Sequence[int], dtype: np.dtype[Any], *, max_size: int | None = None) -> int:
    """Return how many bytes an array takes.

    Raises:
        UpdateRefused: a shape that no array has, or more numbers than `max_size`.
    """
    if len(shape) > MAX_DIMENSIONS or not all(0 <= extent <= MAX_EXTENT for extent in shape):
        raise UpdateRefused(f"An array has the shape {as_line(tuple(shape[: MAX_DIMENSIONS + 1]), 120)}.")
    size = math.prod(shape)
    # numpy counts the bytes of an empty array as if no extent were 0
    if math.prod(extent for extent in shape if extent) * dtype.itemsize >= 2**62:
        raise UpdateRefused(f"An array has the shape {tuple(shape)}.")
    if max_size is not None and size > max_size:
        raise UpdateRefused(
            f"An array holds {size:,} numbers where at most {max_size:,} are expected.",
            code="too-many-numbers",
            max_size=max_size,
        )
    return size * dtype.itemsize


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_JSON_DIGITS:
        raise ValueError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has a name twice")
    return value


def _check_values(value: dict[str, Any]) -> None:
    """Walk without recursion, for the depth is the sender's."""
    level: list[Any] = [value]
    for _ in range(MAX_JSON_DEPTH):
        children: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                children += [*one, *one.values()]
            elif isinstance(one, list):
                children += one
            elif isinstance(one, str) and not one.isascii():
                _check_text(one)
        level = children
        if not level:
            return
    raise UpdateRefused(f"It carries JSON of a depth over {MAX_JSON_DEPTH}.")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise UpdateRefused("It carries JSON with half a character.") from exc
