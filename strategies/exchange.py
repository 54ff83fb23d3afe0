"""One exchange with clients: send, wait with a deadline, and say who answered, who failed and why.

What clients send is read in one place, `read_each`: whatever goes wrong there is a refusal of that client, by name.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, Protocol, TypeVar, runtime_checkable

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from strategies.messages import PEAK_MEMORY, Json, count_bytes, values_of
from unlearning.errors import UpdateRefused
from unlearning.peak_memory import Memory
from unlearning.untrusted import as_line, reason_of

_log = getLogger(__name__)

PAUSE_SHARE, SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 0.05, 0.5
NO_ANSWER = "no answer within"
"""How the reason begins where a client let a deadline pass."""
REFUSED = 1000
"""The code of an error that stands for an answer that came and was thrown away."""
MAX_PULLS = 64
"""Of one look for answers. Up to so many clients are each asked for alone, so that what one sent, even if Flower itself
cannot read it, takes no other's answer with it."""

_LINK_ERRORS = (OSError, httpx.HTTPError)
"""What the way to the SuperLink may raise, in contrast to what was fetched."""


@runtime_checkable
class CountingGrid(Protocol):
    """A Grid that knows what really travelled, and when something has come."""

    @property
    def bytes_sent(self) -> int:
        """Return what was sent so far."""

    @property
    def bytes_received(self) -> int:
        """Return what was received so far."""

    def wait(self, seconds: float) -> None:
        """Wait for an answer that has come since the last look, `seconds` at most."""


_Sent = TypeVar("_Sent")
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a client gave no usable answer; the reason becomes one printable line, for it may be the client's words.

    is_final: asking again cannot help. is_refusal: there was an answer, and it was thrown away.
    """

    reason: str
    is_final: bool = False
    is_refusal: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", as_line(self.reason))

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What came of an exchange. Bytes are payloads: records as Flower counts them.

    values: the JSON of each answer, by client.
    refused: answers that were thrown away, and why, by client, or by node where it was nobody's turn.
    """

    messages: Mapping[str, Message] = field(default_factory=dict)
    values: Mapping[str, Json] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0

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
    """What has come of an exchange so far, by client.

    waiting: the client by the id of the message that it has not answered.
    """

    messages: Mapping[str, Message]
    waiting: dict[str, str] = field(default_factory=dict)
    answered: dict[str, Message] = field(default_factory=dict)
    values: dict[str, Json] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    received: int = 0

    def take(self, asked: str, reply: Message | str) -> None:
        """Take in what was fetched for the message with the id `asked`: an answer, or why it cannot be read."""
        if isinstance(reply, str):
            client = self.waiting.pop(asked, None)
            if client is not None:
                self._fail(client, Failure(reply, is_refusal=True))
            return
        client = self.waiting.pop(reply.metadata.reply_to_message_id, None)
        if client is None:
            self.refused[f"node {reply.metadata.src_node_id}"] = "It answers no open message."
            return
        found, problems = read_each({client: reply}, lambda who, one: _unpack(one, self.messages[who]))
        taken = found.get(client) or Failure(problems[client], is_refusal=True)
        if isinstance(taken, Failure):
            self._fail(client, taken)
            return
        self.answered[client] = reply
        self.values[client], size = taken
        self.received += size

    def _fail(self, client: str, failure: Failure) -> None:
        self.failures[client] = failure
        if failure.is_refusal:
            self.refused[client] = failure.reason


def exchange(
    grid: Grid,
    messages: Mapping[str, Message],
    *,
    timeout_s: float,
) -> Exchange:
    """Send one message a client and wait until all have answered or `timeout_s` has passed.

    An error reply's source node may be the SuperLink itself (the SuperNode was killed), so replies
    are matched by the message they answer. An answer to no open message (replayed), from another node than
    the one asked, of another round or that cannot be read is refused. Pauses between two looks at the SuperLink are a
    tenth of the time waited so far: each look costs it processor time. A `CountingGrid` wakes up by itself.
    """
    started = time.monotonic()
    counting = grid if isinstance(grid, CountingGrid) else None
    before = (counting.bytes_sent, counting.bytes_received) if counting else (0, 0)
    ids = list(grid.push_messages(list(messages.values())))
    found = _Collected(messages, {key: client for client, key in zip(messages, ids, strict=False) if key})
    handed = set(found.waiting.values())
    for client in messages:
        if client not in handed:
            found.failures[client] = Failure("the message could not be handed to the SuperLink")
    while found.waiting:
        for asked, reply in pull(grid, list(found.waiting)):
            found.take(asked, reply)
        if not found.waiting or time.monotonic() - started >= timeout_s:
            break
        waited = time.monotonic() - started
        pause = min(max(waited * PAUSE_SHARE, SHORTEST_PAUSE_S), LONGEST_PAUSE_S, timeout_s)
        (counting.wait if counting else time.sleep)(pause)
    for client in found.waiting.values():
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
        bytes_sent=(
            counting.bytes_sent - before[0]
            if counting
            else sum(count_bytes(message.content) for message in messages.values())
        ),
        bytes_received=counting.bytes_received - before[1] if counting else found.received,
        seconds=time.monotonic() - started,
    )


def reported_failure(values: Mapping[str, Any]) -> Failure | None:
    """Say why a client says that it could not do its work, if that is what it answers."""
    if "error" not in values:
        return None
    return Failure(as_line(values["error"]), is_final=values.get("is-final") is True)


def pull(grid: Grid, message_ids: list[str]) -> Iterator[tuple[str, Message | str]]:
    """Pull the answers that have come to these messages; or why there is none to be read, with the message's id."""
    step = math.ceil(len(message_ids) / MAX_PULLS)
    for start in range(0, len(message_ids), step):
        group = message_ids[start : start + step]
        try:
            replies = list(grid.pull_messages(group))
        except _LINK_ERRORS:
            raise
        except Exception as exc:  # noqa: BLE001 - Flower could not put together what a node has sent
            # What came with it is lost, and Flower says so when it is asked again.
            if len(group) > 1:
                _log.warning("One of %d answers cannot be read: %s", len(group), reason_of(exc))
                continue
            yield group[0], reason_of(exc)
        else:
            yield from ((group[0], reply) for reply in replies)


def _unpack(reply: Message, asked: Message) -> tuple[Json, int] | Failure:
    """Read an answer's JSON and its size in bytes; or why it is no answer.

    Raises:
        UpdateRefused: it cannot be the answer to `asked`, or its JSON is malformed.
    """
    if reply.has_error():
        reason = reply.error.reason or f"error code {reply.error.code}"
        return Failure(reason, is_refusal=reply.error.code == REFUSED)
    if mismatch := _mismatch(reply, asked):
        raise UpdateRefused(mismatch)
    values = values_of(reply.content)
    return reported_failure(values) or (values, count_bytes(reply.content))


def _mismatch(reply: Message, asked: Message) -> str:
    """Say why `reply` cannot be the answer to `asked`; empty if it can."""
    if reply.metadata.src_node_id != asked.metadata.dst_node_id:
        return f"Node {reply.metadata.src_node_id} answers in its place."
    if reply.metadata.group_id != asked.metadata.group_id:
        return f"It belongs to round {reply.metadata.group_id}, not {asked.metadata.group_id}."
    return ""
