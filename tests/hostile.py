"""What a hostile client may send: bytes that are said to be arrays, and texts that are said to be JSON, by kind."""

import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from strategies.messages import VECTOR

Forge = Callable[[Message, RecordDict], Message]
"""Makes the answer to a message, given the honest one's content."""


def but_for(**records: Any) -> Forge:
    """The honest answer, but for these records."""
    return lambda asked, honest: Message(RecordDict({**honest, **records}), reply_to=asked)


HONEST = but_for()


def with_records(**records: Any) -> Forge:
    """An answer of these records only."""
    return lambda asked, _honest: Message(RecordDict(records), reply_to=asked)


def with_array(array: Array, name: str = VECTOR) -> Forge:
    """The honest answer, but for one array."""
    return but_for(arrays=ArrayRecord({name: array}))


def with_arrays(more: Mapping[str, Array]) -> Forge:
    """The honest answer, and more arrays."""
    return lambda asked, honest: but_for(arrays=ArrayRecord({**honest["arrays"], **more}))(asked, honest)


def raw(data: bytes, stype: str = "numpy.ndarray") -> Array:
    """An array of these bytes, whatever they are."""
    return Array("float64", (3,), stype, data)


def with_json(text: str) -> Forge:
    """The honest answer, but for its JSON."""
    return but_for(config=ConfigRecord({"json": text}))


def with_metrics(values: Mapping[str, Any]) -> Forge:
    """The honest answer, but for its metrics."""
    return but_for(metrics=MetricRecord({"num-examples": 10, "loss": 1.0, **values}))


def npy(header: bytes, body: bytes = b"", version: bytes = b"\x01\x00", length: int | None = None) -> bytes:
    """The bytes of a `.npy` file with this header, as it stands."""
    text = header if header.endswith(b"\n") else header + b"\n"
    width = "<H" if version == b"\x01\x00" else "<I"
    return b"\x93NUMPY" + version + struct.pack(width, len(text) if length is None else length) + text + body


def head(descr: str = "'<f8'", shape: str = "(3,)", order: str = "False") -> bytes:
    """A header as numpy writes it."""
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()


def saved(array: object) -> bytes:
    """What `numpy.save` makes of it."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array), allow_pickle=True)
    return buffer.getvalue()


def zipped(size: int = 10**8) -> bytes:
    """An .npz whose one member grows a thousandfold."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vector.npy", npy(head(shape=f"({size // 8},)")) + bytes(size // 100))
    return buffer.getvalue()


_BODY = bytes(24)
ARRAYS: dict[str, bytes] = {
    "nothing": b"",
    "garbage": b"garbage",
    "magic only": b"\x93NUMPY",
    "half a header": b"\x93NUMPY\x01\x00\xff\xff{'descr'",
    "shape of 10^12": npy(head(shape="(1000000000000,)"), _BODY),
    "shape of 10^30": npy(head(shape="(1000000000000000000000000000000,)"), _BODY),
    "shapes whose product wraps to 3": npy(head(shape="(4294967296, 4294967296, 3)"), _BODY),
    "an extent too many digits": npy(head(shape=f"({'9' * 5000},)"), _BODY),
    "nothing times 10^13": npy(head(shape="(0, 9999999999999)"), b""),
    "nothing times what overflows": npy(head(shape="(0, 1099511627776, 1099511627776)"), b""),
    "negative extent": npy(head(shape="(-3,)"), _BODY),
    "negative twice": npy(head(shape="(-1, -3)"), _BODY),
    "extent is a truth value": npy(head(shape="(True,)"), bytes(8)),
    "extent is a float": npy(head(shape="(3.0,)"), _BODY),
    "nine dimensions": npy(head(shape="(1, 1, 1, 1, 1, 1, 1, 1, 3)"), _BODY),
    "a hundred dimensions": npy(head(shape=f"({'1, ' * 100})"), bytes(8)),
    "trailing bytes": npy(head(), _BODY + b"more"),
    "bytes missing": npy(head(), _BODY[:-1]),
    "no bytes": npy(head(), b""),
    "text of 100,000 letters": npy(head(descr="'<U100000000'", shape="(1,)"), bytes(8)),
    "text": saved(["a", "b", "c"]),
    "bytes": saved([b"a", b"b", b"c"]),
    "objects": saved(np.array([{}, [], None], dtype=object)),
    "a pickle": pickle.dumps([1, 2, 3]),
    "a pickle that calls": b"cos\nsystem\n(S'true'\ntR.",
    "records": saved(np.zeros(3, dtype=[("a", "<f8"), ("b", "<i4")])),
    "records in records": npy(head(descr="[('a', [('b', '<f8')])]"), _BODY),
    "void": saved(np.zeros(3, dtype="V8")),
    "times": saved(np.zeros(3, dtype="datetime64[ns]")),
    "complex": saved(np.zeros(3, dtype=complex)),
    "long double": npy(head(descr="'<f16'"), bytes(48)),
    "big-endian": saved(np.zeros(3, dtype=">f8")),
    "dtype that calls": npy(head(descr="__import__('os').getcwd()"), _BODY),
    "dtype of no bytes": npy(head(descr="'<f0'"), b""),
    "9,000 brackets": npy(b"[" * 9000 + b"]" * 9000),
    "9,000 parentheses as a shape": npy(head(shape="(" * 9000 + ")" * 9000)),
    "9,000 braces unclosed": npy(b"{" * 9000),
    "9,000 minus signs": npy(head(shape=f"({'-' * 9000}3,)"), _BODY),
    "a long sum": npy(head(shape=f"({'1+' * 9000}1,)"), _BODY),
    "10^10 digits in a power": npy(head(shape="(10**10**10,)"), _BODY),
    "header of 65,000 blanks": npy(head() + b" " * 64_000, _BODY),
    "header length beyond the end": npy(head(), _BODY, length=60_000),
    "header of 4 GiB": npy(head(), _BODY, version=b"\x02\x00", length=2**32 - 1),
    "version 3": npy(head(), _BODY, version=b"\x03\x00"),
    "version 9": npy(head(), _BODY, version=b"\x09\x00"),
    "keys in another order": npy(b"{'shape': (3,), 'fortran_order': False, 'descr': '<f8', }", _BODY),
    "a key too many": npy(head()[:-1] + b"'x': 1}", _BODY),
    "order is a number": npy(head(order="7"), _BODY),
    "not ASCII": npy(head().replace(b"3", "³".encode()), _BODY),
    "NUL in the header": npy(head().replace(b"(", b"(\x00"), _BODY),
    "truth values of 2": npy(head(descr="'|b1'"), b"\x02\x02\x02"),
    "a zip": zipped(10**6),
    "a zip that grows": zipped(),
    "an empty zip": b"PK\x05\x06" + bytes(18),
    "a broken zip": b"PK\x03\x04" + bytes(40),
    "compressed": zlib.compress(bytes(10**6)),
}
"""None of them is an array of three float64."""

JSON: dict[str, str] = {
    "100,000 lists in each other": '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "900 lists in each other": '{"a": ' + "[" * 900 + "]" * 900 + "}",
    "900 objects in each other": '{"a":' * 900 + "1" + "}" * 900,
    "unclosed": "[" * 200_000,
    "cut": '{"a": "b',
    "no JSON": "\x00\x01\x02",
    "a list": "[1, 2]",
    "a word": '"error"',
    "a number": "7",
    "null": "null",
    "an integer of 5,000 digits": '{"a": ' + "9" * 5000 + "}",
    "an integer of 400 digits": '{"a": ' + "9" * 400 + "}",
    "a name twice": '{"a": 1, "a": 2}',
    "half a character": '{"a": "\\ud800"}',
    "half a character as a name": '{"\\udfff": 1}',
    "20 MiB": '{"a": "' + "x" * 20 * 2**20 + '"}',
    "300,000 lists": '{"a": [' + "[]," * 300_000 + "[]]}",
    "3,000,000 numbers": '{"a": [' + "1," * 3_000_000 + "1]}",
    "a second object": "{}{}",
    "a byte order mark": "\ufeff{}",
}
"""None of them is a JSON object that a client of ours would send."""
