"""Nodes that can take part in nothing, because of their version or because they cannot read the run's settings.

They are sent `query.whoami` only, until its answer reports no obstacle: when the node has restarted, and otherwise
`ASK_AGAIN_S` after the last answer. No round waits for that answer.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import getLogger

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from strategies.exchange import read_each
from strategies.fetching import Fetched, Fetches, Lost
from strategies.messages import OBSTACLE, WHOAMI, Json, compose, values_of
from unlearning.errors import UpdateRefused, VersionMismatch
from unlearning.one_line import as_line
from unlearning.protocol import PROTOCOL, check_protocol

_log = getLogger(__name__)

ASK_AGAIN_S = 60.0
"""A site's program may have been replaced without a restart of its SuperNode."""


@dataclass(slots=True)
class _Unable:
    """Why a node can take part in nothing. activated_at: of the node when it was asked last; question: not answered."""

    reason: str
    activated_at: str
    asked_at: float
    question: str = ""


@dataclass(slots=True)
class SetAside:
    """The nodes that are set aside, until they can take part again."""

    _nodes: dict[int, _Unable] = field(default_factory=dict)
    _activations: dict[int, str] = field(default_factory=dict)
    _fetches: Fetches | None = None

    def add(self, node_id: int, reason: str) -> None:
        """Set a node aside."""
        if node_id not in self._nodes:
            activated_at = self._activations.get(node_id, "")
            self._nodes[node_id] = _Unable(reason, activated_at, time.monotonic())

    def reason(self, node_id: int) -> str:
        """Return why a node is set aside; empty if it is not."""
        found = self._nodes.get(node_id)
        return found.reason if found else ""

    def look(self, grid: Grid, online: Mapping[int, NodeInfo]) -> None:
        """Ask those of the nodes online whose turn it is, and take in what has come; wait for no answer."""
        self._activations = {node_id: node.last_activated_at for node_id, node in online.items()}
        if not self._nodes:
            return
        if self._fetches is None:
            self._fetches = Fetches(grid)
        open_questions = {one.question: node_id for node_id, one in self._nodes.items() if one.question}
        for asked, reply in self._fetches.pull(list(open_questions)):
            key = reply.metadata.reply_to_message_id if isinstance(reply, Message) else asked
            if key in open_questions and not isinstance(reply, Lost):
                self._take(open_questions[key], reply)
        now = time.monotonic()
        due = [
            node_id
            for node_id, one in self._nodes.items()
            if node_id in online
            and (
                one.activated_at != self._activations[node_id]
                or (not one.question and now - one.asked_at >= ASK_AGAIN_S)
            )
        ]
        ids = grid.push_messages([compose(node_id, WHOAMI, 0, {}) for node_id in due]) if due else ()
        for node_id, question in zip(due, ids, strict=False):
            one = self._nodes[node_id]
            one.activated_at, one.asked_at, one.question = self._activations[node_id], now, question

    def _take(self, node_id: int, reply: Fetched) -> None:
        one = self._nodes[node_id]
        one.question, one.asked_at = "", time.monotonic()
        if not isinstance(reply, Message) or reply.has_error():
            return
        found, _ = read_each({"": reply}, lambda _, message: obstacle_in(values_of(message.content)))
        one.reason = found.get("", one.reason)
        if not one.reason:
            _log.info("Node %d can take part again.", node_id)
            del self._nodes[node_id]


def obstacle_in(values: Json) -> str:
    """Return what an answer to `query.whoami` says that keeps its site from taking part; empty if nothing does.

    Raises:
        UpdateRefused: it does not say so in a text.
    """
    try:
        check_protocol(values.get(PROTOCOL), other="the site", own="the server")
    except VersionMismatch as exc:
        return str(exc)
    said = values.get(OBSTACLE, "")
    if not isinstance(said, str):
        raise UpdateRefused("It does not say in a text what keeps it from taking part.")
    return as_line(said)
