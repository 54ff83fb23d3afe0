"""Who is who: which node speaks for which client.

A node that is registered at the SuperLink with a key and a name is the client of that name: no other node
can claim it. A node without a name (insecure mode: demo, tests, simulation) is asked with
`query.whoami` and believed, which is not safe outside one's own machine. Where two unnamed nodes claim
one id the one that came last is believed, because a restarted SuperNode gets a new node id while its
old one still counts as online. Clients that can take part in nothing are not counted as online (`set_aside`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from logging import getLogger

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from strategies.exchange import exchange, read_each
from strategies.heartbeats import heard_at, nodes_heard
from strategies.messages import WHOAMI, Json, compose
from strategies.set_aside import SetAside, obstacle_in
from unlearning.errors import UpdateRefused
from unlearning.one_line import as_line
from unlearning.requests import ID_RULE, is_id

_log = getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """A client that is online.

    is_registered: its id is vouched for by a registered key. heard_at: of its SuperNode's last heartbeat; None in a
        simulation, where there are none.
    """

    client_id: str
    node_id: int
    public_key_hex: str = ""
    is_registered: bool = False
    heard_at: datetime | None = None


class Roster:
    """The clients that are online, and those ever seen.

    Asking costs a message, so the answer of each node id is remembered.
    """

    def __init__(self, *, timeout_s: float = 120.0) -> None:
        self._timeout_s = timeout_s
        self._members: dict[int, Member] = {}
        self._silent: dict[int, int] = {}
        self._impostors: Mapping[str, str] = {}
        self._unreadable: dict[int, str] = {}
        self._set_aside = SetAside()
        self._unable: Mapping[str, str] = {}

    @property
    def unable(self) -> Mapping[str, str]:
        """Clients that were there at the last look and can take part in nothing, and why."""
        return self._unable

    def set_aside(self, node_id: int, reason: str) -> None:
        """Count a node that can take part in nothing as offline until it says that it can."""
        self._set_aside.add(node_id, reason)
        if (member := self._members.get(node_id)) is not None:
            self._unable = {**self._unable, member.client_id: reason}

    @property
    def impostors(self) -> Mapping[str, str]:
        """Nodes, as `node N`, that were online at the last look and speak for no client, and why.

        They claimed another client's id, or did not say theirs in a way that can be read.
        """
        return dict(self._impostors)

    def online(self, grid: Grid, *, may_ask: bool = True) -> Mapping[str, Member]:
        """Return the clients online now, by client id, sorted.

        may_ask: send nodes that are new and have no registered name a message; without, they are left out.
        """
        nodes = nodes_heard(grid)
        if may_ask:
            self._set_aside.look(grid, nodes)
            self._identify(grid, {key: node for key, node in nodes.items() if key not in self._members})
        found: dict[str, Member] = {}
        unable: dict[str, str] = {}
        impostors = {
            f"node {node_id}": why for node_id, why in sorted(self._unreadable.items()) if node_id in nodes
        }
        for node_id in sorted(nodes, key=lambda key: nodes[key].last_activated_at):
            member = self._members.get(node_id)
            if member is None:
                continue
            if reason := self._set_aside.reason(node_id):
                unable[member.client_id] = reason
                continue
            rival = found.get(member.client_id)
            if rival is not None and rival.is_registered and not member.is_registered:
                impostors[f"node {node_id}"] = (
                    f"It claims to be client {member.client_id}, which is registered with a key."
                )
                continue
            if rival is not None:
                impostors[f"node {rival.node_id}"] = (
                    f"It claims to be client {member.client_id}, as does node {node_id}, which "
                    + ("is registered with a key." if member.is_registered else "came later.")
                )
            found[member.client_id] = replace(member, heard_at=heard_at(nodes[node_id]))
        for node, reason in impostors.items():
            if node not in self._impostors:  # said once for as long as it lasts
                _log.warning("%s is not believed: %s", node.capitalize(), reason)
        self._impostors = impostors
        self._unable = {client: reason for client, reason in sorted(unable.items()) if client not in found}
        return dict(sorted(found.items()))

    def client_of(self, node_id: int) -> str | None:
        """Return the client that a node speaks for, if it is known."""
        member = self._members.get(node_id)
        return member.client_id if member else None

    def by_client(self, replies: Iterable[Message]) -> dict[str, Message]:
        """Return the replies that are answers, by the client that each one's node speaks for."""
        return {
            client: message
            for message in replies
            if not message.has_error()
            and (client := self.client_of(message.metadata.src_node_id)) is not None
        }

    def _identify(self, grid: Grid, nodes: Mapping[int, NodeInfo]) -> None:
        unnamed: dict[str, int] = {}
        for node_id, node in nodes.items():
            if node.name and node.public_key:
                self._members[node_id] = Member(node.name, node_id, node.public_key.hex(), True)
            elif self._silent.get(node_id, 0) < 3:
                unnamed[str(node_id)] = node_id
        if not unnamed:
            return
        asked = {key: compose(node_id, WHOAMI, 0, {}) for key, node_id in unnamed.items()}
        answers = exchange(grid, asked, timeout_s=self._timeout_s)
        read, refused = read_each(answers.values, lambda _, said: (_declared_id(said), obstacle_in(said)))
        for key, (client_id, obstacle) in read.items():
            self._members[unnamed[key]] = Member(client_id, unnamed[key])
            self._unreadable.pop(unnamed[key], None)
            if obstacle:
                _log.error("Client %s cannot take part: %s", client_id, obstacle)
                self.set_aside(unnamed[key], obstacle)
        for key, why in {**answers.refused, **refused}.items():
            if key in unnamed:
                self._unreadable[unnamed[key]] = f"It does not say which client it is: {why}"
        for key in {*answers.failures, *refused}:
            self._silent[unnamed[key]] = self._silent.get(unnamed[key], 0) + 1


def _declared_id(values: Json) -> str:
    """Read the client's id in an answer.

    Raises:
        UpdateRefused: there is none, or none that could be logged and filed under.
    """
    client_id = values.get("client-id")
    if not is_id(client_id):
        raise UpdateRefused(f"{as_line(client_id, 60)!r} is no id: {ID_RULE}.")
    return str(client_id)
