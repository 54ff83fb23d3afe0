"""What of a session goes by Flower: invitations, and the messages of nodes that do not come."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from logging import getLogger

from flwr.app import Error, Message
from flwr.serverapp import Grid

from strategies.exchange import LOST, REFUSED, Failure, read_each, read_values
from strategies.fetching import Fetches, Lost
from strategies.messages import SESSION, compose, count_bytes, round_of
from strategies.sessions.client_connections import ClientConnection, ClientConnections
from strategies.sessions.endpoint import Endpoint
from strategies.sessions.payloads import INVITATION, Invitation
from unlearning.runtime.growing_pause import GrowingPause
from unlearning.runtime.json_codec import to_plain

_log = getLogger(__name__)

WITHOUT = GrowingPause(first_s=60.0, longest_s=600.0)
"""How long a node that says that it cannot come to a session is not invited again, by how often in a row it did not.
One that says nothing may have been down: it is invited with its next message, and waits from the second time on."""
POLL_S = 2.0
"""How often Flower is asked whether an invitation was answered."""


class FlowerMessages:
    """Messages that `grid` carries under ids of ours. bytes_sent, bytes_received: of payloads."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._asked: dict[str, tuple[str, Message]] = {}  # Flower's id and the message, by ours
        self._answers = Fetches(grid)
        self.bytes_sent = self.bytes_received = 0

    def __contains__(self, key: str) -> bool:
        return key in self._asked

    def close(self) -> None:
        """Wait for none that is under way; more may be sent."""
        self._answers.close()

    def push(self, messages: list[Message]) -> None:
        """Send messages, whose ids are ours."""
        keys = [message.metadata.message_id for message in messages]
        ids: Iterable[str] = self._grid.push_messages(messages) if messages else []
        for key, message, flower_id in zip(keys, messages, ids, strict=False):
            if flower_id:
                self._asked[key] = flower_id, message
                self.bytes_sent += count_bytes(message.content)

    def pull(self, keys: list[str]) -> Iterator[Message]:
        """Fetch what has come to the messages `keys`."""
        asked = {self._asked[key][0]: key for key in keys if key in self}
        for flower_id, found in self._answers.pull(list(asked)):
            if isinstance(found, Message):
                key = asked.get(found.metadata.reply_to_message_id)
                reply = found
                self.bytes_received += count_bytes(reply.content) if reply.has_content() else 0
            else:
                key = asked[flower_id]
                error = Error(LOST, found.reason) if isinstance(found, Lost) else Error(REFUSED, found)
                reply = Message(error, reply_to=self._asked[key][1])
            if key is not None:
                if not isinstance(found, Lost):  # which may still come
                    self._asked.pop(key, None)
                reply.metadata.__dict__["_reply_to_message_id"] = key
            yield reply


class Invitations:
    """The invitations to sessions at `endpoint`, and which nodes are not invited for a while."""

    def __init__(self, grid: Grid, endpoint: Endpoint) -> None:
        self.messages = FlowerMessages(grid)
        self._endpoint = endpoint
        self._ids = count(1)
        self._open: dict[str, ClientConnection] = {}
        self._polled_at = 0.0
        self._absences: Counter[int] = Counter()
        self._without_until: dict[int, float] = {}

    @property
    def num_open(self) -> int:
        """How many are not answered yet, because their clients' processes still run."""
        return len(self._open)

    def is_barred(self, node_id: int, now: float) -> bool:
        """Tell whether a node is not to be invited now, because it did not come."""
        return self._without_until.get(node_id, 0.0) > now

    def send(self, lines: ClientConnections, message: Message) -> ClientConnection:
        """Invite the node that `message` is for; return its connection."""
        node_id = message.metadata.dst_node_id
        line = lines.open(node_id)
        invitation = Invitation(
            address=self._endpoint.address,
            session_id=lines.session_id,
            token=line.token,
            timeout_s=self._endpoint.timeout_s,
        )
        asking = compose(node_id, SESSION, round_of(message), {INVITATION: to_plain(invitation)})
        key = f"invitation-{next(self._ids)}"
        asking.metadata.__dict__["_message_id"] = key
        self.messages.push([asking])
        if key in self.messages:
            self._open[key] = line
        else:
            line.lost, line.has_returned = "its invitation could not be handed to the SuperLink", True
        _log.info("Session at %s: node %d is invited.", self._endpoint.address, node_id)
        return line

    def poll(self, lines: ClientConnections, *, at_once: bool = False) -> None:
        """Take in Flower's answers to invitations: a client has ended, or its process has died."""
        if not self._open or (not at_once and time.monotonic() - self._polled_at < POLL_S):
            return
        self._polled_at = time.monotonic()
        for reply in self.messages.pull(list(self._open)):
            if reply.has_error() and reply.error.code == LOST:  # Flower reports the end at last
                continue
            line = self._open.pop(reply.metadata.reply_to_message_id, None)
            if line is not None:
                with lines.changed:
                    _note_return(line, reply)

    def forget(self) -> None:
        """Wait for no answer any more."""
        self.messages.close()
        self._open = {}

    def note_arrival(self, node_id: int) -> None:
        """Note that a node has answered in a session."""
        self._absences.pop(node_id, None)

    def note_absence(self, line: ClientConnection, now: float) -> None:
        """Note that a node did not come to the session."""
        has_gone = line.has_returned and not line.cannot_come  # as Flower reports: its process, or the node
        self._absences[line.node_id] += not has_gone
        num = self._absences[line.node_id] - (not line.cannot_come)
        pause_s = 0.0 if has_gone or num < 1 else WITHOUT.after(num)
        self._without_until[line.node_id] = now + pause_s
        _log.warning(
            "Node %d did not come to the session (%s). Flower carries this message; it is invited again %s.",
            *(line.node_id, line.lost, f"in {pause_s:.0f} s" if pause_s else "with the next"),
        )


def _note_return(line: ClientConnection, reply: Message) -> None:
    line.has_returned = True
    if reply.has_error():
        line.lost = Failure(reply.error.reason or f"error code {reply.error.code}").reason
        line.is_refused = reply.error.code == REFUSED
        return
    read, refused = read_each({"": reply}, lambda _, one: read_values(one.content))
    if refused:
        line.lost, line.is_refused = refused[""], True
        return
    failure = read[""]
    if isinstance(failure, Failure):
        line.is_unable, line.cannot_come = line.is_unable or failure.is_lasting, True
        line.lost = failure.reason if failure.is_lasting else line.lost or failure.reason
    else:
        line.is_leaving = True
