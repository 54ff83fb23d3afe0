"""A ring of ten peers, each on a host of its own: a network namespace. A link is cut while a deletion is flooded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from client.peer.peer_cli import read_status
from tests.integration.namespaces import Network, NetworkUnavailable
from tests.integration.peer_processes import (
    NAMES,
    PEER_PORT,
    PeerProcesses,
    forget_calmly,
    has_correction,
    is_done,
    running_peers,
    some_samples,
)

pytestmark = [pytest.mark.slow, pytest.mark.hosts]

CUT_OFF = "6"


@pytest.fixture
def network() -> Iterator[Network]:
    """Ten hosts, where this machine lets us have them."""
    try:
        with Network(NAMES) as made:
            yield made
    except NetworkUnavailable as exc:
        pytest.skip(f"no network namespaces on this machine (they need root): {exc}")


@pytest.fixture
def peers(tmp_path: Path, network: Network) -> Iterator[PeerProcesses]:
    """Ten peers that have trained. A dead link is noticed within the test's time."""
    settings = {"exchange-timeout-s": 5.0}
    with running_peers(PeerProcesses(tmp_path, {"kind": "ring"}, network=network, **settings)) as made:
        yield made


def test_ten_hosts_forget_as_one_though_a_link_is_cut_during_the_flooding(
    network: Network, peers: PeerProcesses
) -> None:
    """All models, that of the peer behind the cut too, are those of peers in one process."""
    assert [network.listening_ports(name) for name in NAMES] == [{PEER_PORT}] * len(NAMES)
    calm = peers.in_one_process()
    target = some_samples(calm)
    network.cut(CUT_OFF)
    key = peers.file(target)
    peers.wait(has_correction, [name for name in NAMES if name != CUT_OFF])
    assert not has_correction(read_status(peers.config(CUT_OFF)))
    network.restore(CUT_OFF)
    peers.wait(is_done, NAMES)

    forget_calmly(calm, target, key)
    peers.check_models(calm)
