"""A Grid whose messages go over one gRPC stream a client, and by Flower where there is none.

What sends and receives messages does not see the difference: the same message, the same answer, the same reasons. One
Flower message invites a node; after that a message costs what the network costs, and no process start. A node is
invited again when its stream has gone permanently, when it leaves, and after `LIFETIME_S`. A node that does not
come is sent its message by Flower; one that reports that it cannot is not invited again for a while.
"""

import errno
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from shutil import disk_usage

import grpc
from flwr.app import Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from strategies.exchange import NO_ANSWER, REFUSED, UNABLE
from strategies.messages import WHOAMI, count_bytes
from strategies.sessions.client_connections import CANNOT_KEEP, ClientConnection, ClientConnections
from strategies.sessions.endpoint import MAX_CLIENTS, Endpoint, serve
from strategies.sessions.framing import MAX_INSTRUCTION_BYTES, Payload
from strategies.sessions.invitations import FlowerMessages, Invitations
from strategies.sessions.payloads import SharedArrays, answer_content, message_payload
from unlearning.errors import SessionError
from unlearning.runtime.peak_memory import GB
from unlearning.untrusted import MAX_JSON_BYTES, reason_of

RECONNECT_S = 30.0
"""How long a client whose stream broke is waited for."""
ARRIVAL_S = 60.0
"""How long an invited client is waited for before its message goes by Flower."""
LIFETIME_S = 600.0
"""How long one process of a client answers; then it ends, and the next message invites another."""
ENDING_S = 30.0
"""How long the clients' processes are waited for at the end."""
NODES_S = 1.0
"""How old the SuperLink's list of nodes online may be: to ask for it takes longer than a round's arithmetic, and it
counts a node as online for half a minute after its last heartbeat."""
_LOST = 1  # the code of an error reply, as Flower's own mean: no answer will come


class SessionGrid(Grid):
    """A Grid over `grid` that holds sessions at `endpoint`.

    spool: where the large arrays of answers are held in files; without it they are in memory.
    always: whether every message goes over a stream; otherwise while `session` is entered.
    wire_dtype: in which models of training rounds travel over streams (`strategies.sessions.wire_dtype`); empty: as
    they are.
    bytes_sent, bytes_received: over streams and by Flower together, as far as messages went through here.
    """

    def __init__(
        self,
        grid: Grid,
        endpoint: Endpoint,
        *,
        always: bool = False,
        reconnect_s: float = RECONNECT_S,
        spool: Path | None = None,
        wire_dtype: str = "",
    ) -> None:
        self._grid = grid
        self._wire_dtype = wire_dtype
        self._endpoint = endpoint
        self._always = always
        self._reconnect_s = reconnect_s
        self._ids = count(1)
        self._spool = spool
        self._lines = ClientConnections(spool)
        self._pending: dict[str, ClientConnection] = {}
        self._by_flower = FlowerMessages(grid)
        self._invitations = Invitations(grid, endpoint)
        self._server: grpc.Server | None = None
        self._seen = 0
        self._shared: SharedArrays | None = None
        self._nodes: list[NodeInfo] = []
        self._nodes_at = -math.inf

    @property
    def bytes_sent(self) -> int:
        """Bytes of frames and of Flower messages to clients."""
        return self._lines.bytes_sent + self._by_flower.bytes_sent + self._invitations.messages.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes of frames and of Flower messages from clients."""
        by_flower = self._by_flower.bytes_received + self._invitations.messages.bytes_received
        return self._lines.bytes_received + by_flower

    @contextmanager
    def session(self) -> Iterator[None]:
        """Send messages over streams while the block runs; then end them, unless they stay for `always`.

        Raises:
            SessionError: the address stays taken, or is open to other machines without TLS.
        """
        self._listen()
        ending_s = 0.0
        try:
            yield
            ending_s = ENDING_S
        finally:
            if not self._always:
                self.close(ending_s=ending_s)

    def close(self, *, ending_s: float = ENDING_S) -> None:
        """End every session, wait for the clients' processes, `ending_s` seconds at most, and stop listening."""
        if self._server is None:
            return
        for line in list(self._lines.by_node.values()):
            self._lines.end(line)
        deadline = time.monotonic() + ending_s
        while self._invitations.num_open and time.monotonic() < deadline:
            self._invitations.poll(self._lines, at_once=True)
            time.sleep(0.1)
        self._by_flower.close()
        self._invitations.forget()
        self._server.stop(1.0).wait()
        self._server = None
        self._pending, self._lines = {}, ClientConnections(self._spool)

    def wait(self, seconds: float) -> None:
        """Wait for an answer that has come since the last look, `seconds` at most."""
        with self._lines.changed:
            self._lines.changed.wait_for(lambda: self._lines.num_answers > self._seen, timeout=seconds)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; the ids are for `pull_messages` of this grid.

        Raises:
            SessionError: they are too large for a stream; none was sent.
            OSError: the answers are too large for the disk (ENOSPC); none was sent.
        """
        messages = list(messages)
        self._forget_late()
        if self._always:
            self._listen()
        if self._server is not None:
            self._check_room(max((count_bytes(one.content) for one in messages), default=0), len(messages))
        ids: list[str] = []
        flower: list[Message] = []
        for message in messages:
            key = f"session-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = key  # as a SuperLink does
            ids.append(key)
            if self._server is None or message.metadata.message_type == WHOAMI or not self._send(message):
                flower.append(message)
        self._by_flower.push(flower)
        return [key if key in self._pending or key in self._by_flower else "" for key in ids]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch the answers that have come to these messages, each once."""
        self._invitations.poll(self._lines)
        replies: list[Message] = []
        flower: list[str] = []
        with self._lines.changed:
            self._seen = self._lines.num_answers
        for key in message_ids:
            line = self._pending.get(key)
            if line is None:
                flower += [key] if key in self._by_flower else []
                continue
            reply = self._reply(key, line)
            if reply is not None:
                self._pending.pop(key, None)
                replies.append(reply)
        if not self._pending:
            self._shared = None
        return [*replies, *self._by_flower.pull(flower)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send by Flower alone, as Flower's own strategies do."""
        return self._grid.send_and_receive(messages, timeout=timeout)

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message (deprecated in Flower)."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes online."""
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes online, as of `NODES_S` ago at most."""
        if time.monotonic() - self._nodes_at >= NODES_S:
            self._nodes, self._nodes_at = list(self._grid.get_nodes()), time.monotonic()
        return list(self._nodes)

    def _listen(self) -> None:
        if self._server is None:
            server = self._endpoint.listen()
            serve(server, self._lines.Attend)
            server.start()
            self._server = server

    def _check_room(self, size: int, count: int) -> None:
        """Refuse messages of `size` bytes at most where their answers, as large, have no room."""
        if size > MAX_INSTRUCTION_BYTES:
            raise SessionError(
                f"A message of {size / GB:.1f} GB is too large: {MAX_INSTRUCTION_BYTES / GB:.1f} GB at most go over a "
                "stream. Train a smaller model, or freeze a part of it, which then stays at home.",
                code="message-too-large",
            )
        free = math.inf if self._spool is None else disk_usage(self._spool).free
        if count * size > free:
            raise OSError(
                errno.ENOSPC,
                f"The answers of {count} clients take {count * size / GB:.2g} GB in {self._spool}, where "
                f"{free / GB:.2g} GB are free. Make room, name another state-dir, or ask fewer clients (fraction).",
            )

    def _send(self, message: Message) -> bool:
        """Hand a message to its node's stream, inviting the node where it has none; or leave it to Flower: False."""
        node_id = message.metadata.dst_node_id
        now = time.monotonic()
        self._shared = SharedArrays.of(message, self._shared, self._wire_dtype)
        payload = message_payload(message, self._shared)
        line = self._lines.by_node.get(node_id)
        if line is not None and not self._is_usable(line, now):
            self._lines.end(line)
            line = None
        if len(payload.values["json"]) > MAX_JSON_BYTES // 2 or self._invitations.is_barred(node_id, now):
            if line is not None:  # its node executes one message at a time
                self._lines.end(line)
            return False
        size = sum(array.nbytes for array in payload.arrays.values())
        self._lines.reply_limit_bytes = max(self._lines.reply_limit_bytes, 8 * size + 2**24)
        if line is None and sum(not one.has_returned for one in self._lines.by_node.values()) >= MAX_CLIENTS:
            return False
        line = line or self._invitations.send(self._lines, message)
        if line.asked is not None:
            self._pending.pop(line.asked.metadata.message_id, None)
        with self._lines.changed:
            line.number += 1
            line.asked, line.asked_at, line.answer = message, now, None
            line.request = replace(payload, exchange=line.number)
            self._lines.changed.notify_all()
        self._pending[message.metadata.message_id] = line
        return True

    def _is_usable(self, line: ClientConnection, now: float) -> bool:
        with self._lines.changed:
            self._note_loss(line, now)
            return not line.lost and not line.is_leaving and now - line.invited_at < LIFETIME_S

    def _note_loss(self, line: ClientConnection, now: float) -> None:
        """Say in `lost` that the node is not waited for any more, once that is so."""
        if line.lost:
            return
        if line.attached_at is None and now - line.invited_at > min(ARRIVAL_S, self._endpoint.timeout_s):
            line.lost = "it did not come to the session"
        is_broken = line.attached_at is not None and line.stream is None and not line.is_leaving
        if is_broken and now - line.detached_at > self._reconnect_s:
            line.lost = f"its stream broke off and did not come back within {self._reconnect_s:g} s"

    def _reply(self, key: str, line: ClientConnection) -> Message | None:
        """Return the answer to the message `key`, or why there is none; None while it may still come."""
        now, timeout_s = time.monotonic(), self._endpoint.timeout_s
        with self._lines.changed:
            asked = line.asked
            assert asked is not None, "a message that is pending is its node's newest"
            if (answer := line.answer) is None:
                self._note_loss(line, now)
                is_delivered = line.delivered >= line.number
                if not line.lost and not line.is_leaving:
                    if not self._is_late(line, now):
                        return None
                    line.forget()
                    return Message(Error(_LOST, f"{NO_ANSWER} {timeout_s:g} s"), reply_to=asked)
            else:
                line.forget()
        if answer is not None:
            return self._read(line.node_id, answer, asked)
        self._lines.end(line)
        self._nodes_at = -math.inf  # it may be online no longer
        if line.is_unable:
            return Message(Error(UNABLE, line.lost), reply_to=asked)
        if line.attached_at is None and not line.is_refused:
            self._invitations.note_absence(line, now)
        if not line.is_refused and (line.attached_at is None or line.is_leaving or not is_delivered):
            self._pending.pop(key)
            is_sent = line.attached_at is not None and self._send(asked)
            if not is_sent:
                self._by_flower.push([asked])
            if is_sent or key in self._by_flower:
                return None
        return Message(Error(REFUSED if line.is_refused else _LOST, line.lost), reply_to=asked)

    def _is_late(self, line: ClientConnection, now: float) -> bool:
        return now - max(line.asked_at, line.attached_at or now) > self._endpoint.timeout_s

    def _forget_late(self) -> None:
        """Hold no model of messages whose sender has given up by itself, and so looks for no answer."""
        now = time.monotonic()
        with self._lines.changed:
            for key, line in [*self._pending.items()]:
                if self._is_late(line, now):
                    line.forget()
                    del self._pending[key]

    def _read(self, node_id: int, answer: Payload, asked: Message) -> Message:
        """Return a node's answer, or why it is lost or refused. Not under the lock: one in 16 bits takes a while."""
        self._invitations.note_arrival(node_id)
        try:
            return Message(answer_content(answer, asked.content, self._spool), reply_to=asked)
        except OSError as exc:
            return Message(Error(_LOST, f"{CANNOT_KEEP}: {exc}"), reply_to=asked)
        except Exception as exc:  # noqa: BLE001 - the bytes are the client's, and so is what they lead to
            return Message(Error(REFUSED, reason_of(exc)), reply_to=asked)
