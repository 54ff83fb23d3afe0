"""What tests of protocol versions share: sites in this process whose programs are of other versions."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo

from tests.federation import InProcessFederation
from tests.sessions import ThreadedGrid
from unlearning import protocol

_here = threading.local()


@pytest.fixture
def versions(monkeypatch) -> None:
    """Each thread speaks the version that it has entered, otherwise today's."""
    monkeypatch.setattr(protocol, "own_version", lambda: getattr(_here, "version", protocol.PROTOCOL_VERSION))


@contextmanager
def speaking(version: int) -> Iterator[None]:
    """Let this thread speak another version."""
    _here.version = version
    try:
        yield
    finally:
        del _here.version


class GridOfVersions(ThreadedGrid):
    """A Grid that can hold sessions.

    versions: of nodes whose programs are not of today's. restarted: nodes whose SuperNode came once more.
    mute: nodes whose answers do not come. later: what happens before the first message of a round is answered.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.versions: dict[int, int] = {}
        self.restarted: set[int] = set()
        self.mute: set[int] = set()
        self.later: dict[str, Callable[[], object]] = {}

    def get_nodes(self) -> list[NodeInfo]:
        """Return the nodes, with the time of their last start."""
        nodes = list(super().get_nodes())
        for node in nodes:
            node.last_activated_at = "once more" if node.node_id in self.restarted else "once"
        return nodes

    def _carry(self, message_id: str, message: Message) -> None:
        self.later.pop(message.metadata.group_id, lambda: None)()
        if message.metadata.dst_node_id not in self.mute:
            super()._carry(message_id, message)

    def _answer(self, message: Message) -> Message:
        version = self.versions.get(message.metadata.dst_node_id, protocol.PROTOCOL_VERSION)
        with speaking(version):
            return super()._answer(message)


class FederationOfVersions(InProcessFederation):
    """A federation whose sites may have programs of other versions."""

    kind_of_grid = GridOfVersions
