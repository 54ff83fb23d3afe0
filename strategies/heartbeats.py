"""Which SuperNodes are heard of: whose heartbeats reach the SuperLink.

A SuperNode sends one every 17.5 to 22.5 s. One that was killed counts as online at the SuperLink until its lease ends,
60 s after the last; here it is not waited for after two that did not come.
"""

from datetime import UTC, datetime, timedelta

from flwr.common.constant import HEARTBEAT_MAX_INTERVAL, HEARTBEAT_PATIENCE
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

SILENT = timedelta(seconds=45)
"""A node whose last heartbeat is as old is neither asked nor waited for."""


def heard_at(node: NodeInfo) -> datetime | None:
    """Return when the SuperLink had the node's last heartbeat, `HEARTBEAT_PATIENCE` intervals before its lease ends.

    None in a simulation, where there are none.
    """
    if not 0 < node.heartbeat_interval <= HEARTBEAT_MAX_INTERVAL:
        return None
    return datetime.fromtimestamp(node.online_until - HEARTBEAT_PATIENCE * node.heartbeat_interval, UTC)


def nodes_heard(grid: Grid) -> dict[int, NodeInfo]:
    """Return the nodes online that were heard of lately, by id.

    Where that would be none of them the SuperLink was away, or its clock is another one: then all count.
    """
    nodes = {node.node_id: node for node in grid.get_nodes()}
    last = {node_id: heard_at(node) for node_id, node in nodes.items()}
    now = datetime.now(UTC)
    heard = {key: nodes[key] for key, at in last.items() if at is None or now - at < SILENT}
    return heard or nodes
