"""One exchange with clients: send, wait with a deadline, and say who answered, who failed and why."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from strategies.messages import PEAK_MEMORY, count_bytes, values_of
from unlearning.errors import UpdateRefused
from unlearning.peak_memory import Memory

_log = getLogger(__name__)

PAUSE_SHARE, SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.01, 0.5


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a client gave no usable answer; `is_final` if asking again cannot help."""

    reason: str
    is_final: bool = False

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What came of an exchange. Bytes are payloads: records as Flower counts them.

    refused: answers that were thrown away unread, and why, by client, or by node where it was nobody's turn.
    """

    messages: Mapping[str, Message] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0

    def plus(self, other: "Exchange") -> "Exchange":
        """Both together."""
        return Exchange(
            messages={**self.messages, **other.messages},
            failures={**self.failures, **other.failures},
            refused={**self.refused, **other.refused},
            bytes_sent=self.bytes_sent + other.bytes_sent,
            bytes_received=self.bytes_received + other.bytes_received,
            seconds=self.seconds + other.seconds,
        )

    @property
    def replies(self) -> Mapping[str, RecordDict]:
        """The answers by client id."""
        return {client: message.content for client, message in self.messages.items()}

    @property
    def client_memory(self) -> Mapping[str, Memory]:
        """The most memory that each client says its work took, by client id."""
        return {
            client: Memory.from_json(values_of(content).get(PEAK_MEMORY))
            for client, content in self.replies.items()
        }


def exchange(
    grid: Grid,
    messages: Mapping[str, Message],
    *,
    timeout_s: float,
) -> Exchange:
    """Send one message a client and wait until all have answered or `timeout_s` has passed.

    An error reply's source node may be the SuperLink itself (the SuperNode was killed), so replies
    are matched by the message they answer. An answer to no open message (replayed), from another node than
    the one asked, or of another round is refused. Pauses between two looks are a twentieth of the time waited
    so far, so they cost a round at most about 5 %.
    """
    started = time.monotonic()
    clients = list(messages)
    sent = sum(count_bytes(message.content) for message in messages.values())
    ids = list(grid.push_messages([messages[client] for client in clients]))
    waiting: dict[str, str] = {}
    failures: dict[str, Failure] = {}
    for client, message_id in zip(clients, ids, strict=False):
        if message_id:
            waiting[message_id] = client
    handed = set(waiting.values())
    for client in clients:
        if client not in handed:
            failures[client] = Failure("the message could not be handed to the SuperLink")
    answered: dict[str, Message] = {}
    refused: dict[str, str] = {}
    received = 0
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            answering = waiting.pop(reply.metadata.reply_to_message_id, None)
            if answering is None:
                refused[f"node {reply.metadata.src_node_id}"] = "It answers no open message."
                continue
            if reply.has_error():
                failures[answering] = Failure(reply.error.reason or f"error code {reply.error.code}")
                continue
            received += count_bytes(reply.content)
            if mismatch := _mismatch(reply, messages[answering]):
                refused[answering] = mismatch
                failures[answering] = Failure(mismatch)
                continue
            problem = _failure_in(reply.content)
            if problem:
                failures[answering] = problem
            else:
                answered[answering] = reply
        if not waiting or time.monotonic() - started >= timeout_s:
            break
        waited = time.monotonic() - started
        time.sleep(min(max(waited * PAUSE_SHARE, SHORTEST_PAUSE_S), LONGEST_PAUSE_S, timeout_s))
    for client in waiting.values():
        failures[client] = Failure(f"no answer within {timeout_s:g} s")
    for client, reason in sorted(failures.items()):
        _log.warning("Client %s did not take part: %s", client, reason)
    for who, why in sorted(refused.items()):
        _log.warning("An answer is refused (%s): %s", who, why)
    return Exchange(
        messages=dict(sorted(answered.items())),
        failures=failures,
        refused=refused,
        bytes_sent=sent,
        bytes_received=received,
        seconds=time.monotonic() - started,
    )


def reported_failure(values: Mapping[str, Any]) -> Failure | None:
    """Why a client says that it could not do its work, if that is what it answers."""
    if "error" not in values:
        return None
    return Failure(str(values["error"]), is_final=bool(values.get("is-final", False)))


def _mismatch(reply: Message, asked: Message) -> str:
    """Why `reply` cannot be the answer to `asked`; empty if it can."""
    if reply.metadata.src_node_id != asked.metadata.dst_node_id:
        return f"Node {reply.metadata.src_node_id} answers in its place."
    if reply.metadata.group_id != asked.metadata.group_id:
        return f"It belongs to round {reply.metadata.group_id}, not {asked.metadata.group_id}."
    return ""


def _failure_in(content: RecordDict) -> Failure | None:
    try:
        return reported_failure(values_of(content))
    except UpdateRefused as exc:
        return Failure(str(exc))
