"""The roster knows when the SuperLink last heard of each node; who is silent is neither asked nor waited for."""

from datetime import UTC, datetime, timedelta

import pytest
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo

from strategies.exchange import exchange
from strategies.heartbeats import nodes_heard
from strategies.in_process_grid import InProcessGrid
from strategies.messages import compose
from strategies.roster import Roster
from tests.federation import client_app

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


class OneNode(InProcessGrid):
    """A grid with the node 5, which is `hospital-0`."""

    def __init__(self, **lease: float) -> None:
        super().__init__(client_app, [], {})
        self._node = NodeInfo(node_id=5, name="hospital-0", public_key=b"key", **lease)

    def get_nodes(self) -> list[NodeInfo]:
        return [self._node]


def test_a_heartbeat_is_two_intervals_before_the_lease_ends():
    """That is how Flower makes the lease."""
    lease = {"online_until": (NOW + timedelta(seconds=60)).timestamp(), "heartbeat_interval": 30.0}
    assert Roster().online(OneNode(**lease))["hospital-0"].heard_at == NOW


def test_a_virtual_node_has_no_heartbeats():
    """Its lease is for ever."""
    assert (
        Roster().online(OneNode(online_until=1e300, heartbeat_interval=1e300))["hospital-0"].heard_at is None
    )
    assert Roster().online(OneNode())["hospital-0"].heard_at is None


class Silent(InProcessGrid):
    """The node 1001, whose last heartbeat is `age` seconds old, beside 1002, which was heard of just now."""

    def __init__(self, age: float) -> None:
        super().__init__(client_app, [{}, {}], {})
        self.ages = {1001: age, 1002: 0.0}

    def get_nodes(self) -> list[NodeInfo]:
        now = datetime.now(UTC).timestamp()
        lease = {name: now + 60.0 - age for name, age in self.ages.items()}
        return [NodeInfo(node_id=name, online_until=lease[name], heartbeat_interval=30.0) for name in lease]

    def _carry(self, message_id: str, message: Message) -> None:
        """No answer comes."""


@pytest.mark.parametrize(("age", "heard"), [(40.0, [1001, 1002]), (46.0, [1002])])
def test_a_node_that_missed_two_heartbeats_is_not_online(age, heard):
    """The SuperLink itself counts it for 60 s."""
    assert sorted(nodes_heard(Silent(age))) == heard


def test_where_no_node_was_heard_of_the_superlink_was_away():
    """Or its clock is another one: its word alone counts."""
    grid = Silent(50.0)
    grid.ages[1002] = 50.0
    assert sorted(nodes_heard(grid)) == [1001, 1002]


def test_a_client_that_is_silent_at_two_looks_is_waited_for_no_longer(monkeypatch):
    """Another one, who is online, has until the deadline; at each look it is said for whom the exchange waits."""
    monkeypatch.setattr("strategies.exchange.LOOK_S", 0.1)
    waited: list[set[str]] = []
    asked = {name: compose(node, "query.notice", 3, {}) for name, node in (("a", 1001), ("b", 1002))}
    done = exchange(Silent(50.0), asked, timeout_s=1.5, meanwhile=lambda names: waited.append({*names}))
    assert {client: str(why).split(":")[0] for client, why in done.failures.items()} == {
        "a": "it is offline",
        "b": "no answer within 1.5 s",
    }
    assert waited[0] == {"a", "b"}
    assert waited[-1] == {"b"}
