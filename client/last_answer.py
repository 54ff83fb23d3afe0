"""A site's last answer, kept until the server asks for something else, so that a lost one can be given again.

The file `last-answer` in the client's state directory:

    KEY SHA-256\n    the hash of the message, and the hash of the rest
    ...              the answer's records, as Flower's protobuf

It holds one answer to work: training or a method's step. Other answers are computed again. The server
asks again under the same round and with the same content, so the same bytes go out, nothing is trained twice, and what
methods keep here of a round is not touched twice. The file is erased by the next other message, and when
something more is forgotten. It is not flushed to the disk: after a power cut the answer is computed again.
"""

import hashlib
from logging import getLogger

from flwr.app import Context, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from client.memory import LAST_ANSWER, PARTIAL_ANSWER, erase_last_answer, state_dir_of
from strategies.messages import TRAIN, UNLEARN, count_bytes, round_of
from unlearning.runtime.durable_files import make_private, open_private

_log = getLogger(__name__)

KEPT = frozenset({TRAIN, UNLEARN})
MAX_BYTES = 2**30
"""A larger answer is not kept."""


def key_of(message: Message, context: Context) -> str:
    """Return the hash of what a message asks, by its type, round and content, and in which run of which settings."""
    settings = sorted(context.run_config.items()), sorted(context.node_config.items())
    digest = hashlib.sha256(f"{context.run_id}\0{settings!r}\0".encode())
    digest.update(f"{message.metadata.message_type}\0{round_of(message)}\0".encode())
    for name, record in sorted(message.content.config_records.items()):
        digest.update(f"{name}\0{sorted(record.items())!r}\0".encode())
    for name, arrays in sorted(message.content.array_records.items()):
        for key, array in sorted(arrays.items()):
            digest.update(f"{name}\0{key}\0{len(array.data)}\0".encode())
            digest.update(array.data)
    return digest.hexdigest()


class LastAnswer:
    """The last answer of a site; without a state directory (simulation) there is none, and work is done again."""

    def __init__(self, context: Context) -> None:
        self._directory = state_dir_of(context.node_config)

    def find(self, key: str) -> RecordDict | None:
        """Return the answer to what has this key, if it is the last one; otherwise erase the last one."""
        if self._directory is None:
            return None
        path = self._directory / LAST_ANSWER
        try:
            header, _, body = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        if header != _header(key, body):
            self.erase()
            return None
        _log.warning("The server asks once more for the last answer; the same is given.")
        return recorddict_from_proto(ProtoRecordDict.FromString(body))

    def keep(self, key: str, message_type: str, content: RecordDict) -> None:
        """Keep an answer, in place of the one before, if it is one to work and not too large."""
        if self._directory is None or message_type not in KEPT or count_bytes(content) > MAX_BYTES:
            return
        body = recorddict_to_proto(content).SerializeToString()
        make_private(self._directory)
        partial = self._directory / PARTIAL_ANSWER
        with open_private(partial) as file:
            file.write(_header(key, body) + b"\n" + body)
        partial.replace(self._directory / LAST_ANSWER)

    def erase(self) -> None:
        """Erase the last answer."""
        if self._directory is not None:
            erase_last_answer(self._directory)


def _header(key: str, body: bytes) -> bytes:
    return f"{key} {hashlib.sha256(body).hexdigest()}".encode()
