"""Arrays and JSON in one file, the one form in which this project keeps them: an .npz without pickles.

    archive.json    {"version": 2, "value": ..., "arrays": {NAME: WAY}}: a dataclass as `to_plain` says it, with null in
                    the places of arrays, and the way to each from the whole
    NAME            that array; the name is the way with dots: `batch.method_state.parameters`

A file of named arrays alone has no `archive.json`. A field's name in a dataclass is its name in the file: one that is
renamed keeps the old name as an alias, or VERSION rises and the old version is read apart.
"""

import io
import json
import zlib
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import IO, Any, TypeVar
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib.format import header_data_from_array_1_0, write_array_header_1_0
from numpy.typing import NDArray

from unlearning.errors import CheckpointError, VersionMismatch
from unlearning.runtime.json_codec import restore, with_arrays

VERSION = 2
_JSON = "archive.json"
_AT_ONCE = 2**20
"""Bytes that are written at once: after their checksum they are still in the cache."""
_UNREADABLE = (OSError, RuntimeError, TypeError, ValueError, LookupError, EOFError, BadZipFile, zlib.error)

Arrays = dict[str, NDArray[Any]]
_Kind = TypeVar("_Kind")
_Way = tuple[str | int, ...]


def pack(value: Any) -> bytes:
    """Return the bytes of a file that holds a dataclass, arrays in it included."""
    buffer = io.BytesIO()
    pack_into(buffer, value)
    return buffer.getvalue()


def pack_into(file: IO[bytes], value: Any) -> None:
    """Write what `pack` returns to a file, without a second copy of it in memory."""
    found: list[tuple[_Way, NDArray[Any]]] = []
    plain = _lift(with_arrays(value), (), found)
    arrays: Arrays = {}
    ways: dict[str, _Way] = {}
    for way, array in found:
        name = ".".join(map(str, way))
        while name in arrays:  # the keys of a mapping may hold dots
            name += "'"
        arrays[name], ways[name] = array, way
    text = json.dumps({"version": VERSION, "value": plain, "arrays": ways}).encode()
    pack_arrays_into(file, {_JSON: np.frombuffer(text, dtype=np.uint8), **arrays})


def unpack(kind: type[_Kind], content: bytes | IO[bytes]) -> _Kind:
    """Return the `kind` in a file, or in its content.

    Raises:
        CheckpointError: it is damaged, or of a version that is not known here.
        VersionMismatch: a newer version of this program wrote it.
    """
    arrays = unpack_arrays(content)
    try:
        found = json.loads(arrays[_JSON].tobytes())
        check_version(found["version"])
        for name, way in found["arrays"].items():
            reduce(getitem, way[:-1], found["value"])[way[-1]] = arrays[name]
        return restore(kind, found["value"])
    except _UNREADABLE as exc:
        raise CheckpointError(f"It is damaged, or no {kind.__name__}: {exc}.") from exc


def check_version(version: object) -> None:
    """Refuse a file of another version than this program writes.

    Raises:
        CheckpointError, VersionMismatch: says which, and what to do. The file of a newer program is not damaged, so
            no caller may pass it over, put it aside or go on from an older one.
    """
    if version != VERSION:
        is_newer = isinstance(version, int) and version > VERSION
        raise (VersionMismatch if is_newer else CheckpointError)(
            f"It is of version {version}, this program reads version {VERSION}. Use the flower-unlearning that wrote "
            "it, or a newer one."
        )


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of a file of named arrays."""
    buffer = io.BytesIO()
    pack_arrays_into(buffer, arrays)
    return buffer.getvalue()


def pack_arrays_into(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write what `pack_arrays` returns to a file, as `numpy.savez` does, but without a copy of any array."""
    with ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            plain = np.ascontiguousarray(array).reshape(array.shape)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                write_array_header_1_0(member, header_data_from_array_1_0(plain))
                content = bytes_of(plain)
                for start in range(0, len(content), _AT_ONCE):
                    member.write(content[start : start + _AT_ONCE])


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Return the bytes of an array's numbers, the last axis fastest; copied only where they do not lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def unpack_arrays(content: bytes | IO[bytes]) -> Arrays:
    """Return the named arrays in a file, or in its content.

    Raises:
        CheckpointError: it is damaged.
    """
    source = io.BytesIO(content) if isinstance(content, bytes) else content
    try:
        with np.load(source, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except _UNREADABLE as exc:
        raise CheckpointError(f"It is damaged, or no file of arrays: {type(exc).__name__}: {exc}.") from exc


def _lift(value: Any, way: _Way, found: list[tuple[_Way, NDArray[Any]]]) -> Any:
    """Return `value` without its arrays, which are added to `found`; `way` leads to it."""
    if isinstance(value, np.ndarray):
        found.append((way, value))
        return None
    if isinstance(value, Mapping):
        return {key: _lift(item, (*way, key), found) for key, item in value.items()}
    if isinstance(value, list | tuple) and not (value and isinstance(value[0], str)):  # ids may be a million
        return [_lift(item, (*way, place), found) for place, item in enumerate(value)]
    return value
