"""A site's last answer, kept until the server asks for something else, so that a lost one can be given again.

The file `last-answer` in the client's state directory is written once, and what is sent is read from it:

    JSON\n    the hash of the message, since when the machine runs, the sizes of what follows
    ...       the answer's records without their arrays, as Flower's protobuf
    ...       the numbers of each array

It holds one answer to work: training or a method's step. Other answers are computed again. The server
asks again under the same round and with the same content, so the same bytes go out, nothing is trained twice, and what
methods keep here of a round is not touched twice. The file is erased by the next other message, and when
something more is forgotten. It is not flushed to the disk: after a power cut, when the machine runs since another
moment than the file says, the answer is computed again.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from logging import getLogger
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from numpy.typing import NDArray

from client.memory import LAST_ANSWER, PARTIAL_ANSWER, erase_last_answer, state_dir_of
from strategies.held_arrays import HeldArray, numbers_of
from strategies.messages import TRAIN, UNLEARN, arrays_record, records_of, round_of
from unlearning.parameters import fingerprint
from unlearning.runtime.archive import bytes_of
from unlearning.runtime.durable_files import make_private, open_private
from unlearning.runtime.spool import take_room

_log = getLogger(__name__)

KEPT = frozenset({TRAIN, UNLEARN})
_ALIGNED = 64
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def key_of(message: Message, context: Context) -> str:
    """Return the hash of what a message asks, by its type, round and content, and in which run of which settings."""
    settings = sorted(context.run_config.items()), sorted(context.node_config.items())
    digest = hashlib.sha256(f"{context.run_id}\0{settings!r}\0".encode())
    digest.update(f"{message.metadata.message_type}\0{round_of(message)}\0".encode())
    for name, record in sorted(records_of(message.content, ConfigRecord).items()):
        digest.update(f"{name}\0{sorted(record.items())!r}\0".encode())
    for name, arrays in sorted(records_of(message.content, ArrayRecord).items()):
        for key, array in sorted(arrays.items()):
            known = array.fingerprint if isinstance(array, HeldArray) else ""
            content = known or fingerprint(numbers_of(key, array))
            digest.update(f"{name}\0{key}\0{array.shape}\0{content}\0".encode())
    return digest.hexdigest()


class LastAnswer:
    """The last answer of a site; without a state directory (simulation) there is none, and work is done again."""

    def __init__(self, context: Context) -> None:
        self._directory = state_dir_of(context.node_config)

    def find(self, key: str) -> RecordDict | None:
        """Return the answer to what has this key, if it is the last one; otherwise erase the last one."""
        if self._directory is None or not (path := self._directory / LAST_ANSWER).exists():
            return None
        with suppress(OSError, ValueError, LookupError, TypeError):
            with path.open("rb") as file:
                header = json.loads(file.readline())
            if header["key"] == key and header["boot"] == _boot():
                content = _read(path, header)
                _log.warning("The server asks once more for the last answer; the same is given.")
                return content
        self.erase()
        return None

    def keep(self, key: str, message_type: str, content: RecordDict) -> RecordDict:
        """Keep an answer to work in place of the one before; return the same one, with its arrays in the file."""
        if self._directory is None or message_type not in KEPT or not (boot := _boot()):
            return content
        try:
            make_private(self._directory)
            header = _write(self._directory / PARTIAL_ANSWER, {"key": key, "boot": boot}, content)
            path = (self._directory / PARTIAL_ANSWER).replace(self._directory / LAST_ANSWER)
            return _read(path, header)
        except OSError as exc:
            _log.warning("The answer is sent and cannot be kept in case it is lost: %s", exc)
            self.erase()
            return content

    def erase(self) -> None:
        """Erase the last answer."""
        if self._directory is not None:
            erase_last_answer(self._directory)


def _boot() -> str:
    """Return by what the kernel names its present run; empty where it does not, and no answer is kept."""
    with suppress(OSError):
        return _BOOT.read_text(encoding="ascii").strip()
    return ""


def _arrays(content: RecordDict) -> Iterator[tuple[str, str, NDArray[Any]]]:
    for name, record in records_of(content, ArrayRecord).items():
        for key, array in record.items():
            yield name, key, numbers_of(key, array)


def _write(path: Path, known: dict[str, Any], content: RecordDict) -> dict[str, Any]:
    arrays = list(_arrays(content))
    others = {name: ArrayRecord() if isinstance(one, ArrayRecord) else one for name, one in content.items()}
    body = recorddict_to_proto(RecordDict(others)).SerializeToString()
    header = {
        **known,
        "records": len(body),
        "arrays": [[name, key, one.dtype.str, one.shape] for name, key, one in arrays],
    }
    with open_private(path) as file:
        take_room(file.fileno(), 0, sum(numbers.nbytes for _, _, numbers in arrays))
        file.write(json.dumps(header).encode() + b"\n" + body)
        for _, _, numbers in arrays:
            file.write(bytes(-file.tell() % _ALIGNED))
            file.write(bytes_of(numbers))
    return header


def _read(path: Path, header: dict[str, Any]) -> RecordDict:
    """Return the answer in a file, its arrays mapped.

    Raises:
        ValueError: it was cut.
    """
    with path.open("rb") as file:
        mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
    place = mapped.find(b"\n") + 1 + header["records"]
    content = recorddict_from_proto(ProtoRecordDict.FromString(mapped[place - header["records"] : place]))
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for name, key, dtype, shape in header["arrays"]:
        place += -place % _ALIGNED
        numbers = np.ndarray(shape, dtype, mapped, place)
        found.setdefault(name, {})[key] = numbers
        place += numbers.nbytes
    if place != len(mapped):
        raise ValueError("it was cut")
    for name, arrays in found.items():
        content[name] = arrays_record(arrays)
    return content
