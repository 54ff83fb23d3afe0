"""One exchange with clients: send, wait with a deadline, and say who answered, who failed and why.

What clients send is read in one place, `read_each`: whatever goes wrong there is a refusal of that client, by name.
"""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from logging import getLogger
from typing import Any, TypeVar

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from strategies.fetching import (
    LOST_S,
    SLOWEST_LINK,
    CountingGrid,
    Fetched,
    Fetches,
    Lost,
    is_in_memory,
    short_turns,
)
from strategies.heartbeats import SILENT, nodes_heard
from strategies.messages import (
    AHEAD,
    LASTING,
    PEAK_MEMORY,
    WHOAMI,
    Json,
    count_bytes,
    values_of,
    with_content,
)
from unlearning.errors import UpdateRefused, VersionMismatch
from unlearning.one_line import as_line
from unlearning.protocol import PROTOCOL, check_protocol
from unlearning.runtime.growing_pause import GrowingPause
from unlearning.runtime.peak_memory import Memory
from unlearning.secure_aggregation.addends import SecureTotal
from unlearning.untrusted import reason_of

_log = getLogger(__name__)

_LOOKS = GrowingPause(first_s=0.05, longest_s=0.5, factor=1.1)
"""Between two looks at the SuperLink, which cost it processor time: about a tenth of the time waited so far."""
_LOOKS_IN_MEMORY = GrowingPause(first_s=0.01, longest_s=0.1, factor=1.1)
"""In a simulation, where each answer that was not fetched makes Flower's search for the next message longer, and a
round of ten clients is over in a tenth of a second."""
LOOK_S = 4.0
"""How often an exchange looks whether those whom it waits for are online; who is not, twice in a row, has failed."""
NO_ANSWER = "no answer within"
"""How the reason begins where a client let a deadline pass."""
MAX_REPEATS = 2
"""How often an answer that is lost on its way is asked for again."""
REFUSED, LOST, UNABLE = 1000, 1001, 1002
"""Codes of errors: the answer came and was thrown away; it came in part (Flower's own is `MESSAGE_UNAVAILABLE`); the
client can take part in nothing."""

_Sent = TypeVar("_Sent")
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a client gave no usable answer; the reason becomes one printable line, for it may be the client's words.

    is_final: asking again cannot help. is_refusal: there was an answer, and it was thrown away.
    is_lasting: the client cannot take part until its program or its set-up changes.
    is_ahead: it knows of deletions that this server's ledger has said, and says no longer.
    """

    reason: str
    is_final: bool = False
    is_refusal: bool = False
    is_lasting: bool = False
    is_ahead: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", as_line(self.reason))

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The result of an exchange. Bytes are payloads: records as Flower counts them.

    values: the JSON of each answer, by client.
    refused: answers that were thrown away, and why, by client, or by node where it was no client's turn.
    asked_again: how often, by client, because the answer was lost on its way.
    total: what the server learns of it under secure aggregation, in place of messages; None where it was given up.
    """

    messages: Mapping[str, Message] = field(default_factory=dict)
    values: Mapping[str, Json] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    asked_again: Mapping[str, int] = field(default_factory=dict)
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0
    total: SecureTotal | None = None

    @property
    def replies(self) -> Mapping[str, RecordDict]:
        """The answers by client id."""
        return {client: message.content for client, message in self.messages.items()}

    @property
    def client_memory(self) -> Mapping[str, Memory]:
        """The most memory that each client says its work took, by client id."""
        return {client: Memory.from_json(values.get(PEAK_MEMORY)) for client, values in self.values.items()}


def read_each(
    answers: Mapping[str, _Sent], read: Callable[[str, _Sent], _Read]
) -> tuple[dict[str, _Read], dict[str, str]]:
    """Return what `read` makes of each client's answer, and why answers are refused, both by client, sorted.

    Whatever `read` raises is a refusal of that one answer, so let it do nothing else than read.
    """
    found: dict[str, _Read] = {}
    refused: dict[str, str] = {}
    for client, answer in sorted(answers.items()):
        try:
            found[client] = read(client, answer)
        except Exception as exc:  # noqa: BLE001 - the bytes are the client's, and so is what they lead to
            refused[client] = reason_of(exc)
    return found, refused


@dataclass(slots=True)
class _Collected:
    """The state of an exchange, by client.

    waiting: the client by the id of each message that it has not answered; asked: those ids, by client.
    spare: the ids of messages whose client has answered another one; their answers may come, too.
    lost: why, where no message is waited for any more because the answer was lost.
    absent: who was not online at the last look.
    """

    messages: Mapping[str, Message]
    waiting: dict[str, str] = field(default_factory=dict)
    asked: dict[str, list[str]] = field(default_factory=dict)
    spare: set[str] = field(default_factory=set)
    lost: dict[str, str] = field(default_factory=dict)
    answered: dict[str, Message] = field(default_factory=dict)
    values: dict[str, Json] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    asked_again: dict[str, int] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    sent: int = 0
    received: int = 0

    def send(self, grid: Grid, messages: Mapping[str, Message]) -> None:
        """Hand one message a client to the SuperLink.

        Numbered clients go in the order of their numbers, in which Flower's simulation looks for their messages: of
        those before it has the fewest to look through.
        """
        clients = sorted(messages, key=lambda client: (len(client), client))
        ids = list(grid.push_messages([messages[client] for client in clients]))
        handed = {key: client for client, key in zip(clients, ids, strict=False) if key}
        self.waiting |= handed
        for key, client in handed.items():
            self.asked.setdefault(client, []).append(key)
        self.sent += sum(count_bytes(message.content) for message in messages.values())
        for client in set(messages) - set(handed.values()):
            self._fail(client, Failure("the message could not be handed to the SuperLink"))

    def take(self, asked: str, reply: Fetched) -> None:
        """Take in what was fetched for the message with the id `asked`: an answer, or why there is none."""
        if isinstance(reply, Lost):
            if asked in self.waiting:  # it may still come, so it is waited for as well
                self.lost[self.waiting[asked]] = reply.reason
            return
        if isinstance(reply, str):
            client = self.waiting.get(asked)
            if client is not None:
                self._fail(client, Failure(reply, is_refusal=True))
            return
        answered = reply.metadata.reply_to_message_id
        client = self.waiting.pop(answered, None)
        if client is None:
            if answered not in self.spare:
                self.refused[f"node {reply.metadata.src_node_id}"] = "It answers no open message."
            self.spare.discard(answered)
            return
        if reply.has_error() and reply.error.code in (LOST, ErrorCode.MESSAGE_UNAVAILABLE):
            if client not in self.waiting.values():
                self.lost[client] = f"its answer was lost on the way: {reply.error.reason}"
            return
        found, problems = read_each({client: reply}, lambda who, one: _unpack(one, self.messages[who]))
        taken = found.get(client) or Failure(problems[client], is_refusal=True)
        if isinstance(taken, Failure):
            self._fail(client, taken)
            return
        self._settle(client)
        self.answered[client] = reply
        self.values[client], size = taken
        self.received += size

    def ask_again(self, grid: Grid) -> None:
        """Send the same message once more to those whose answer was lost, if they are online and it was not too often.

        A client that has the answer still gives the same one (`client.last_answer`); otherwise it does the same again,
        for seeds depend on the round.
        """
        lost, self.lost = self.lost, {}
        if not lost:
            return
        online = {node.node_id for node in grid.get_nodes()}
        again: dict[str, Message] = {}
        for client, reason in lost.items():
            times, message = self.asked_again.get(client, 0), self.messages[client]
            if times < MAX_REPEATS and message.metadata.dst_node_id in online:
                self.asked_again[client] = times + 1
                again[client] = with_content(message, message.content)
                _log.warning(
                    "Client %s is asked again (%d of %d): %s", client, times + 1, MAX_REPEATS, reason
                )
            elif client not in self.waiting.values():
                self._fail(client, Failure(reason))
        if again:
            self.send(grid, again)

    def give_up_absent(self, grid: Grid) -> None:
        """Wait no longer for clients whose node was not online at two looks in a row."""
        heard = nodes_heard(grid)
        waiting = {*self.waiting.values()}
        absent = {one for one in waiting if self.messages[one].metadata.dst_node_id not in heard}
        for client in absent & self.absent:
            self._fail(
                client, Failure(f"it is offline: nothing was heard of it for {SILENT.total_seconds():g} s")
            )
        self.absent = absent

    def _fail(self, client: str, failure: Failure) -> None:
        self._settle(client)
        self.failures[client] = failure
        if failure.is_refusal:
            self.refused[client] = failure.reason

    def _settle(self, client: str) -> None:
        """Wait for no other answer of a client: the first counts."""
        self.spare |= {key for key in self.asked.pop(client, ()) if self.waiting.pop(key, None)}
        self.lost.pop(client, None)


def exchange(
    grid: Grid,
    messages: Mapping[str, Message],
    *,
    timeout_s: float,
    meanwhile: Callable[[Collection[str]], None] = lambda _: None,
) -> Exchange:
    """Send one message a client and wait until all have answered, are offline, or `timeout_s` has passed.

    meanwhile: is called between two looks for answers, with the clients that are still waited for.

    An error reply's source node may be the SuperLink itself (the SuperNode was killed), so replies
    are matched by the message they answer. An answer to no open message (replayed), from another node than
    the one asked, of another round or that cannot be read is refused; one that was lost on its way is asked for again.
    A `CountingGrid` ends the pause between two looks by itself.
    """
    started = looked = time.monotonic()
    counting = grid if isinstance(grid, CountingGrid) else None
    before = (counting.bytes_sent, counting.bytes_received) if counting else (0, 0)
    found, looks = _Collected(messages), count(1)
    pause = _LOOKS_IN_MEMORY if is_in_memory(grid) else _LOOKS
    largest = max((count_bytes(message.content) for message in messages.values()), default=0)
    with short_turns(grid), closing(Fetches(grid, lambda: LOST_S + largest / SLOWEST_LINK)) as fetches:
        found.send(grid, messages)
        while found.waiting:
            for asked, reply in fetches.pull(list(found.waiting)):
                found.take(asked, reply)
            if time.monotonic() - started >= timeout_s:
                break
            found.ask_again(grid)
            if time.monotonic() - looked >= LOOK_S:
                found.give_up_absent(grid)
                looked = time.monotonic()
            if not found.waiting:
                break
            meanwhile({*found.waiting.values()})
            (counting.wait if counting else time.sleep)(min(pause.after(next(looks)), timeout_s))
    for client in {*found.waiting.values(), *found.lost}:
        found.failures[client] = Failure(f"{NO_ANSWER} {timeout_s:g} s")
    for client, reason in sorted(found.failures.items()):
        _log.warning("Client %s did not take part: %s", client, reason)
    for who in sorted(set(found.refused) - set(found.failures)):
        _log.warning("An answer is refused (%s): %s", who, found.refused[who])
    return Exchange(
        messages=dict(sorted(found.answered.items())),
        values=found.values,
        failures=found.failures,
        refused=found.refused,
        asked_again=found.asked_again,
        bytes_sent=counting.bytes_sent - before[0] if counting else found.sent,
        bytes_received=counting.bytes_received - before[1] if counting else found.received,
        seconds=time.monotonic() - started,
    )


def reported_failure(values: Mapping[str, Any]) -> Failure | None:
    """Return why a client reports that it could not do its work, if it does."""
    if "error" not in values:
        return None
    return Failure(
        as_line(values["error"]),
        is_final=values.get("is-final") is True,
        is_lasting=values.get(LASTING) is True,
        is_ahead=values.get(AHEAD) is True,
    )


def read_values(content: RecordDict) -> Json | Failure:
    """Read the JSON of a client's answer; or why the client could not do its work, by its version or its report.

    Raises:
        UpdateRefused: it is malformed.
    """
    values = values_of(content)
    try:
        check_protocol(values.get(PROTOCOL), other="the site", own="the server")
    except VersionMismatch as exc:
        return Failure(str(exc), is_lasting=True, is_refusal="error" not in values)
    return reported_failure(values) or values


def _unpack(reply: Message, asked: Message) -> tuple[Json, int] | Failure:
    """Read an answer's JSON and its size in bytes; or why it is no answer.

    Raises:
        UpdateRefused: it cannot be the answer to `asked`, or its JSON is malformed.
    """
    if reply.has_error():
        reason = reply.error.reason or f"error code {reply.error.code}"
        code = reply.error.code
        return Failure(reason, is_refusal=code == REFUSED, is_lasting=code == UNABLE)
    found, wanted = reply.metadata, asked.metadata
    if found.src_node_id != wanted.dst_node_id:
        raise UpdateRefused(f"Node {found.src_node_id} answers in its place.")
    if found.group_id != wanted.group_id:
        raise UpdateRefused(f"It belongs to round {found.group_id}, not {wanted.group_id}.")
    is_whoami = asked.metadata.message_type == WHOAMI  # which every version answers
    values = values_of(reply.content) if is_whoami else read_values(reply.content)
    return values if isinstance(values, Failure) else (values, count_bytes(reply.content))
