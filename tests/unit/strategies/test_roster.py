"""The roster knows when the SuperLink last heard of each node."""

from datetime import UTC, datetime, timedelta

from flwr.proto.node_pb2 import NodeInfo

from strategies.in_process_grid import InProcessGrid
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
