"""Frames: a payload (JSON and arrays) in bounded pieces, and back.

What arrives is checked before room is made for it: sizes, types, order; and room is made for what has arrived, not
for what is announced. The JSON and each array have a place of their own, so an array is used where it was received:
in memory, or in a file (`unlearning.runtime.spool`). A chunk is put together and read here and not by protobuf, which
copies it three times.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.sessions import session_pb2 as pb
from unlearning.errors import SessionError, UpdateRefused
from unlearning.one_line import as_line
from unlearning.runtime.archive import bytes_of
from unlearning.runtime.spool import SpoolFile
from unlearning.untrusted import MAX_ARRAYS, MAX_JSON_BYTES, array_of, check_dtype, check_size, json_object

CHUNK_BYTES = 2**20
MAX_FRAME_BYTES = 2 * CHUNK_BYTES
"""What gRPC lets through at once: a full chunk, or the header of a method's few arrays."""

MAX_INSTRUCTION_BYTES = 2**33
"""The largest payload that a client takes."""
END = pb.Frame(end=pb.End()).SerializeToString()

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """One instruction or one reply.

    exchange: counts the session's exchanges from 1.
    fingerprints: of the arrays that the receiver shall keep, by name; one may then travel once only. They are the
        sender's word: TLS sees to it that what arrives is what was sent.
    """

    exchange: int
    values: Json
    arrays: Mapping[str, NDArray[Any]]
    fingerprints: Mapping[str, str] = field(default_factory=dict)


def frames(payload: Payload, known: frozenset[str] = frozenset()) -> Iterator[bytes]:
    """Yield the payload's header and chunks as they travel; an array whose fingerprint is `known` to the receiver goes
    without its bytes.
    """
    text = json.dumps(dict(payload.values)).encode()
    arrays = {name: _little_endian(array) for name, array in payload.arrays.items()}
    headers = [
        pb.ArrayHeader(
            name=name,
            dtype=array.dtype.str,
            shape=array.shape,
            fingerprint=payload.fingerprints.get(name, ""),
            is_known=payload.fingerprints.get(name) in known,
        )
        for name, array in arrays.items()
    ]
    header = pb.Header(exchange=payload.exchange, json_bytes=len(text), arrays=headers)
    yield pb.Frame(header=header).SerializeToString()
    yield from _chunks(memoryview(text))
    for one in headers:
        if not one.is_known:
            yield from _chunks(bytes_of(arrays[one.name]))


def parsed(frame: bytes) -> pb.Frame | memoryview:
    """Return a frame that has come; of a chunk the bytes, where they lie.

    Raises:
        DecodeError: it is no frame.
    """
    for size in _HEAD_SIZES:
        if frame.startswith(_chunk_head(max(0, len(frame) - size))) and len(frame) > size:
            return memoryview(frame)[size:]
    return pb.Frame.FromString(frame)


class Assembler:
    """Puts frames together to payloads: `add` gives a payload when its last frame has come.

    limit_bytes: how large a payload may be; what announces itself larger is refused unread.
    spool: the directory of the files in which arrays of more than a chunk are held; without one they are in memory.
    """

    def __init__(self, limit_bytes: int, spool: Path | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._spool = spool
        self._kept: dict[str, NDArray[Any]] = {}
        self._header: pb.Header | None = None
        self._sizes: list[int] = []
        self._sections: list[bytearray | SpoolFile] = []

    def add(self, frame: pb.Frame | memoryview) -> Payload | None:
        """Return the payload that `frame`, as `parsed` gives it, completes, if it does.

        Raises:
            SessionError: the frame is out of order, malformed or above a limit.
            OSError: it cannot be written to the spool.
        """
        kind = "chunk" if isinstance(frame, memoryview) else frame.WhichOneof("kind")
        try:
            if isinstance(frame, pb.Frame) and kind == "header" and self._header is None:
                self._begin(frame.header)
            elif kind == "chunk" and self._header is not None:
                self._fill(frame if isinstance(frame, memoryview) else frame.chunk.data)
            else:
                raise SessionError(f"A frame of kind {kind!r} came out of order.", code="out-of-order")
            if len(self._sections) < len(self._sizes) or len(self._sections[-1]) < self._sizes[-1]:
                return None
            assert self._header is not None
            header, self._header = self._header, None
            return self._payload(header)
        except UpdateRefused as exc:
            raise SessionError(str(exc), code=exc.code, **exc.fields) from exc

    def _begin(self, header: pb.Header) -> None:
        sizes = [header.json_bytes]
        names = {array.name for array in header.arrays}
        if len(names) < len(header.arrays) or len(names) > MAX_ARRAYS or header.json_bytes > MAX_JSON_BYTES:
            raise SessionError(
                f"A payload of {header.json_bytes:,} bytes of JSON and {len(header.arrays):,} arrays of {len(names):,} "
                f"names is announced; {MAX_JSON_BYTES:,} bytes and {MAX_ARRAYS:,} arrays are the limit.",
                code="too-much-announced",
            )
        for array in header.arrays:
            if array.is_known:
                if array.fingerprint not in self._kept:
                    raise SessionError(
                        f"Array {as_line(array.name, 40)!r} is said to be known here and is not.",
                        code="unknown-array",
                    )
            else:
                sizes.append(check_size(array.shape, check_dtype(array.dtype)))
        if sum(sizes) > self.limit_bytes:
            raise SessionError(
                f"A payload of {sum(sizes):,} bytes is announced; the limit is {self.limit_bytes:,} bytes.",
                code="payload-too-large",
                limit=self.limit_bytes,
            )
        self._header = header
        self._sizes, self._sections = sizes, [bytearray()]
        self._skip_full()

    def _fill(self, data: bytes | memoryview) -> None:
        section, size = self._sections[-1], self._sizes[len(self._sections) - 1]
        expected = min(CHUNK_BYTES, size - len(section))
        if len(data) != expected:
            raise SessionError(
                f"A chunk of {len(data):,} bytes came where {expected:,} were expected.",
                code="bad-chunk",
                expected=expected,
            )
        section.extend(data)
        self._skip_full()

    def _skip_full(self) -> None:
        sizes, sections = self._sizes, self._sections
        while len(sections) < len(sizes) and len(sections[-1]) == sizes[len(sections) - 1]:
            size = sizes[len(sections)]
            spool = self._spool if size > CHUNK_BYTES else None
            sections.append(bytearray() if spool is None else SpoolFile(spool, size))

    def _payload(self, header: pb.Header) -> Payload:
        text, *buffers = self._sections
        self._sections = []
        arrays: dict[str, NDArray[Any]] = {}
        for array in header.arrays:
            if array.is_known:
                arrays[array.name] = self._kept[array.fingerprint]
                continue
            buffer = buffers.pop(0)
            content = buffer if isinstance(buffer, bytearray) else buffer.mapped()
            arrays[array.name] = array_of(content, check_dtype(array.dtype), array.shape)
            if array.fingerprint:  # the newest only: an older model is not asked for again
                self._kept = {array.fingerprint: arrays[array.name]}
        assert isinstance(text, bytearray), "only arrays are spooled"
        fingerprints = {array.name: array.fingerprint for array in header.arrays if array.fingerprint}
        values = json_object(bytes(text))
        return Payload(exchange=header.exchange, values=values, arrays=arrays, fingerprints=fingerprints)


def _chunks(data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK_BYTES):
        chunk = data[start : start + CHUNK_BYTES]
        yield b"".join((_chunk_head(len(chunk)), chunk))


_HEAD_SIZES = range(4, 11)
"""Of `_chunk_head`, up to the largest frame."""


@lru_cache(maxsize=64)
def _chunk_head(size: int) -> bytes:
    """Return what comes before the `size` bytes of a chunk in its frame, as protobuf writes it."""
    inner = b"\x0a" + _varint(size)
    return b"\x1a" + _varint(len(inner) + size) + inner


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes((*written, number))


def _little_endian(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
