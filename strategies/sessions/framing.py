"""Frames: a parcel (JSON and arrays) in bounded pieces, and back.

What arrives is checked before room is made for it: sizes, types, order. The JSON and each array have a
buffer of their own, so an array is used where it was received.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.sessions import session_pb2 as pb
from unlearning.errors import SessionError
from unlearning.parameters import content_hash

CHUNK_BYTES = 2**20
MAX_FRAME_BYTES = 2 * CHUNK_BYTES
"""What gRPC lets through at once: a full chunk, or the header of a method's few arrays."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One instruction or one reply.

    exchange: counts the session's exchanges from 1.
    hashes: of the arrays that the receiver shall keep, by name; one of them may then travel once only.
    """

    exchange: int
    values: Json
    arrays: Mapping[str, NDArray[Any]]
    hashes: Mapping[str, str] = field(default_factory=dict)


def frames(parcel: Parcel, known: frozenset[str] = frozenset()) -> Iterator[pb.Frame]:
    """The parcel's header and chunks; arrays whose hash is `known` to the receiver travel without their bytes."""
    text = json.dumps(dict(parcel.values)).encode()
    arrays = {name: _little_endian(array) for name, array in parcel.arrays.items()}
    headers = [
        pb.ArrayHeader(
            name=name,
            dtype=array.dtype.str,
            shape=array.shape,
            content_hash=parcel.hashes.get(name, ""),
            is_known=parcel.hashes.get(name) in known,
        )
        for name, array in arrays.items()
    ]
    yield pb.Frame(header=pb.Header(exchange=parcel.exchange, json_bytes=len(text), arrays=headers))
    yield from _chunks(memoryview(text))
    for header in headers:
        if not header.is_known:
            yield from _chunks(arrays[header.name].reshape(-1).view(np.uint8).data)


class Assembler:
    """Puts frames together to parcels: `add` gives a parcel when its last frame has come.

    limit_bytes: how large a parcel may be; what announces itself larger is refused unread.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: dict[str, NDArray[Any]] = {}
        self._header: pb.Header | None = None
        self._sections: list[bytearray] = []
        self._filled = self._section = 0

    def add(self, frame: pb.Frame) -> Parcel | None:
        """The parcel that `frame` completes, if it does.

        Raises:
            SessionError: the frame is out of order, malformed or above a limit.
        """
        kind = frame.WhichOneof("kind")
        if kind == "header" and self._header is None:
            self._begin(frame.header)
        elif kind == "chunk" and self._header is not None:
            self._fill(frame.chunk.data)
        else:
            raise SessionError(f"A frame of kind {kind!r} came out of order.")
        assert self._header is not None
        if self._section < len(self._sections):
            return None
        header, self._header = self._header, None
        return self._parcel(header)

    def _begin(self, header: pb.Header) -> None:
        sizes = [header.json_bytes]
        for array in header.arrays:
            if array.is_known:
                if array.content_hash not in self._kept:
                    raise SessionError(f"Array {array.name!r} is said to be known here and is not.")
            else:
                sizes.append(math.prod(array.shape) * _dtype(array).itemsize)
        if sum(sizes) > self._limit:
            raise SessionError(
                f"A parcel of {sum(sizes):,} bytes is announced; the limit is {self._limit:,} bytes."
            )
        self._header = header
        self._sections = [bytearray(size) for size in sizes]
        self._section = self._filled = 0
        self._skip_full()

    def _fill(self, data: bytes) -> None:
        section = self._sections[self._section]
        expected = min(CHUNK_BYTES, len(section) - self._filled)
        if len(data) != expected:
            raise SessionError(f"A chunk of {len(data):,} bytes came where {expected:,} were expected.")
        section[self._filled : self._filled + expected] = data
        self._filled += expected
        self._skip_full()

    def _skip_full(self) -> None:
        while self._section < len(self._sections) and self._filled == len(self._sections[self._section]):
            self._section, self._filled = self._section + 1, 0

    def _parcel(self, header: pb.Header) -> Parcel:
        text, *buffers = self._sections
        self._sections = []
        arrays: dict[str, NDArray[Any]] = {}
        for array in header.arrays:
            if array.is_known:
                arrays[array.name] = self._kept[array.content_hash]
                continue
            raw = np.frombuffer(buffers.pop(0), dtype=_dtype(array)).reshape(tuple(array.shape))
            arrays[array.name] = raw.astype(raw.dtype.newbyteorder("="), copy=False)
            if array.content_hash:
                self._keep(array.name, array.content_hash, arrays[array.name])
        return Parcel(exchange=header.exchange, values=_object(bytes(text)), arrays=arrays)

    def _keep(self, name: str, digest: str, array: NDArray[Any]) -> None:
        if content_hash(array) != digest:
            raise SessionError(f"Array {name!r} is not what its hash says.")
        self._kept = {digest: array}  # the newest only: an older model is not asked for again


def _chunks(data: memoryview) -> Iterator[pb.Frame]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield pb.Frame(chunk=pb.Chunk(data=bytes(data[start : start + CHUNK_BYTES])))


def _little_endian(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)


def _dtype(array: pb.ArrayHeader) -> np.dtype[Any]:
    try:
        dtype = np.dtype(array.dtype)
    except TypeError as exc:
        raise SessionError(f"Array {array.name!r} has no dtype that is known here: {array.dtype!r}.") from exc
    if dtype.kind not in "fiub" or dtype.str.startswith(">"):
        raise SessionError(f"Array {array.name!r} may not be of dtype {array.dtype!r}.")
    return dtype


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise SessionError(f"A parcel carries malformed JSON: {exc}.") from exc
    if not isinstance(value, dict):
        raise SessionError("A parcel's JSON is not an object.")
    return value
