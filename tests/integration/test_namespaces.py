"""Three hosts, the server and two clients, each in a network namespace: cables are cut, slow and lossy.

The tests share one running federation and each leaves it running. What they end in is compared, to the bit,
with an in-process federation in which the same deletions come after the same numbers of rounds. Cuts last
some seconds: what becomes of longer ones is said in docs/reference-failures.md.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.integration.live_federation import TRAIN, UNLEARN, LiveFederation, hashes
from tests.integration.namespaces import Network, network_or_skip
from tests.integration.separate_hosts import (
    CONTROL_PORT,
    DELETION_PORT,
    FLEET_PORT,
    RUNTIME_PORT,
    SERVER,
    FederationOfHosts,
    federation_of_hosts,
    host_of,
)
from unlearning.requests import DeletionRequest, Status

pytestmark = [pytest.mark.slow, pytest.mark.hosts]

NUM_CLIENTS = 2
EVERYBODY = ["0", "1"]
MOST_CUTS = 3
"""On a busy machine a cut may outlast two heartbeats: the SuperLink takes the client for offline then."""
BAD_CABLE = 0
"""The client whose cable can be slow and lossy."""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """The hosts, where this machine lets us have them."""
    hosts = [SERVER, *map(host_of, range(NUM_CLIENTS))]
    with network_or_skip(hosts, on_bad_cable=host_of(BAD_CABLE)) as made:
        yield made


@pytest.fixture(scope="module")
def live(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationOfHosts]:
    """A federation on them."""
    with federation_of_hosts(
        tmp_path_factory.mktemp("hosts"), network, num_clients=NUM_CLIENTS
    ) as federation:
        yield federation


def check_equals_one_machine(live: LiveFederation) -> None:
    """Each deletion's models before, unlearned and after are those of the run on one machine."""
    here = list(map(hashes, live.ledger.requests.select()))
    assert all(len(set(models.values())) == 3 for models in here)
    assert here == list(map(hashes, live.replayed()))


def test_a_client_reaches_the_fleet_and_the_deletion_service_only(live: FederationOfHosts) -> None:
    """Of all that listens on the server's host, control and runtime too, two ports are open to others."""
    network = live.network
    ports = network.listening_ports(SERVER)
    assert ports >= {CONTROL_PORT, FLEET_PORT, DELETION_PORT}
    found = {port: network.probe(host_of(0), network.address(SERVER), port) for port in ports}
    assert {port for port, answer in found.items() if answer == "open"} == {FLEET_PORT, DELETION_PORT}


def test_no_other_host_reaches_a_client(live: FederationOfHosts) -> None:
    """A SuperNode's runtime, which hands out work to any caller, is for its own host."""
    network = live.network
    ports = network.listening_ports(host_of(0))
    assert RUNTIME_PORT in ports
    for other in (SERVER, host_of(1)):
        answers = {network.probe(other, network.address(host_of(0)), port) for port in ports}
        assert answers == {"refused"}


def test_a_link_cut_in_training_makes_the_round_late_and_loses_nothing(live: FederationOfHosts) -> None:
    """The answer waits at the client, the round for the answer; its update is in the average."""
    for _ in range(MOST_CUTS):
        with live.link_cut_while_reply_is_due(0, TRAIN):
            before, during = len(live.training_rounds()), datetime.now(UTC)
        live.wait_for_rounds(1)
        cut_round = live.training_rounds()[before]
        assert cut_round.at > during
        if "offline" not in cut_round.metrics["failed"].get("0", ""):
            break
    assert cut_round.metrics["participants"] == EVERYBODY
    assert not cut_round.metrics["failed"]


@pytest.mark.long
def test_a_link_cut_in_unlearning_changes_no_bit(live: FederationOfHosts) -> None:
    """The deletion waits for its client, is completed at the first attempt, and all models are the same.

    In the gate the link is cut in training, and test_sessions.py and test_lost_answers.py lose streams and answers.
    """
    filed: list[DeletionRequest] = []

    def file_one_more() -> None:
        if filed:
            live.wait_until_reached(filed[-1], Status.COMPLETED)
        filed.append(live.file(live.samples(1, 5 * len(filed))))

    for _ in range(MOST_CUTS):
        with live.link_cut_while_reply_is_due(1, UNLEARN, file_one_more):
            assert not live.rounds_of(filed[-1], "unlearning")
        live.wait_until_reached(filed[-1], Status.COMPLETED)
        if live.ledger.requests.get(filed[-1].id).attempts == 1:
            break
    assert live.ledger.requests.get(filed[-1].id).attempts == 1
    assert {request.submitted_by for request in filed} == {"operator"}
    check_equals_one_machine(live)


@pytest.mark.long
def test_a_slow_and_lossy_link_changes_no_bit(live: FederationOfHosts) -> None:
    """0.1 s each way and every twentieth packet lost, during a whole deletion on that client's host.

    In the gate a link that is cut changes no bit either.
    """
    network = live.network
    with network.impaired(delay_s=0.1, loss=0.05) as cable:
        assert network.handshake_s(host_of(BAD_CABLE), network.address(SERVER), FLEET_PORT) >= 0.2
        request = live.file(live.samples(BAD_CABLE, 0))
        live.wait_until_reached(request, Status.COMPLETED)
        assert cable.num_lost > 0
    (recovery,) = live.rounds_of(request, "recovery")
    assert recovery.metrics["participants"] == EVERYBODY
    check_equals_one_machine(live)
