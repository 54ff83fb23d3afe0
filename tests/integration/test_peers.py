"""Ten peers as real processes with TLS, on two graphs; one is killed while a deletion is flooded.

In the gate test_peer_hosts.py has ten on hosts of their own, and tests/unit/client/peer/test_flooding.py restarts one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.peer.peer_cli import read_status
from tests.integration.peer_processes import (
    NAMES,
    REQUESTER,
    PeerProcesses,
    forget_calmly,
    has_correction,
    is_done,
    running_peers,
    some_samples,
)

pytestmark = [pytest.mark.slow, pytest.mark.long]  # starts ten processes

KILLED = "6"
RANDOM: dict[str, Any] = {"probability": 0.4, "seed": 1}


@pytest.fixture(params=["ring", "erdos-renyi"])
def graph(request: pytest.FixtureRequest) -> dict[str, object]:
    """Each peer with two neighbours, or with some at random."""
    return {"kind": request.param, **({} if request.param == "ring" else RANDOM)}


@pytest.fixture
def peers(tmp_path: Path, graph: dict[str, object]) -> Iterator[PeerProcesses]:
    """Ten peers that have trained."""
    with running_peers(PeerProcesses(tmp_path, graph)) as made:
        yield made


def test_ten_processes_forget_as_one_though_one_is_killed_during_the_flooding(
    peers: PeerProcesses, graph: dict[str, object]
) -> None:
    """All models, that of the killed peer too, are those of peers in one process to which nothing happened."""
    calm = peers.in_one_process()
    target = some_samples(calm)
    key = peers.file(target)
    peers.kill(KILLED)
    peers.wait(has_correction, [name for name in NAMES if name != KILLED])
    if graph["kind"] == "ring":
        peers.start(KILLED)  # by the command, once: it takes seconds
    else:
        peers.fork(KILLED)
    peers.wait(is_done, NAMES)

    forget_calmly(calm, target, key)
    peers.check_models(calm)
    assert read_status(peers.config(REQUESTER))["answers"] == {key: f"{REQUESTER}-{key}"}
    assert [read_status(peers.config(name))["members"] for name in NAMES] == [NAMES] * len(NAMES)
