"""Items reach everybody once, whatever the network and the peers go through."""

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.decentralised.in_process import InProcessNetwork
from client.peer.gossip import GossipMessage, Kind, ModelOffer
from client.peer.journal import Journal
from tests.peers import (
    FOUR,
    correction_item,
    counting_peer,
    counting_peers,
    do_round,
    forget,
    member_item,
    request_item,
    samples,
    trained_network,
)
from tests.unit.unlearning.decentralised.graphs import connected_graphs
from unlearning.decentralised.graphs import Graph, from_edges, ring

FIVE = ring("01234")


def asked(origin: str, *neighbours: str) -> tuple[GossipMessage, GossipMessage]:
    """What comes before a correction: its origin is a member, and asked for something to be forgotten."""
    return member_item(origin, *neighbours), request_item(origin)


def mean(network: InProcessNetwork) -> np.ndarray:
    return np.mean([peer.model.vector for peer in network.peers.values()], axis=0)


@given(connected_graphs(), st.floats(0, 0.6), st.integers(0, 2**32 - 1), st.data())
@settings(max_examples=15, deadline=None)  # a machine that does other work must not fail it
def test_a_correction_reaches_every_peer_once_on_any_connected_graph(
    graph: Graph, loss: float, seed: int, data: st.DataObject
) -> None:
    """With payloads and confirmations lost at random, every model moves by weight times vector, once."""
    network = trained_network(graph)
    lossy = InProcessNetwork(network.peers.values(), loss=loss, generator=np.random.default_rng(seed))
    before = {name: peer.model.vector for name, peer in network.peers.items()}
    origin = data.draw(st.sampled_from(graph.nodes))
    network.peers[origin].file(samples(origin, "3"), "key")
    lossy.settle()
    for name, peer in network.peers.items():
        np.testing.assert_allclose(peer.model.vector, before[name] + 0.25 * 8.0)


def test_without_losses_an_item_travels_each_edge_about_once() -> None:
    """N peers and E edges: at most 2E deliveries of each item, and every peer gets it."""
    network = trained_network(FIVE)
    network.num_items = 0
    forget(network, "2", samples("2", "3"))
    num_items = 2  # the request and its correction
    assert num_items * 4 <= network.num_items <= num_items * 2 * len(FIVE.edges)


def test_a_peer_that_was_down_during_the_flooding_catches_up(tmp_path: Path) -> None:
    """It misses both paths of the ring, restarts from its state directory and gets the correction then."""
    network = trained_network(FIVE)
    journal = Journal(tmp_path)
    network.peers["3"] = counting_peer("3", FIVE, journal)
    network.settle()
    network.down.add("3")
    before = network.peers["3"].model.vector
    forget(network, "1", samples("1", "7"))
    assert network.peers["2"].model.vector[0] > network.peers["3"].model.vector[0]
    network.peers["3"] = counting_peer("3", FIVE, Journal(tmp_path))
    network.down.clear()
    network.settle()
    np.testing.assert_allclose(network.peers["3"].model.vector, before + 2.0)


def test_a_peer_that_dies_before_its_model_is_written_adds_the_correction_when_it_restarts(
    tmp_path: Path,
) -> None:
    """The item is in the journal and not in the model: it is added then, and not again after that."""
    counting_peer("0", FIVE, Journal(tmp_path))
    journal = Journal(tmp_path)
    journal.items()
    for item in (*asked("3", "2", "4"), correction_item("3")):
        journal.put(item)  # and here it dies
    for _ in range(2):
        peer = counting_peer("0", FIVE, Journal(tmp_path))
        np.testing.assert_allclose(peer.model.vector, [1.0, 0.0, 0.0])


def test_a_request_survives_the_peer_that_it_was_issued_at(tmp_path: Path) -> None:
    """Killed right after it took the request, it still owes the correction when it is back."""
    peer = counting_peer("0", FIVE, Journal(tmp_path))
    peer.file(samples("0", "3", "4"), "key")
    again = counting_peer("0", FIVE, Journal(tmp_path))
    assert again.forget_set().sample_ids == {"3", "4"}
    network = InProcessNetwork([again, *counting_peers(FIVE)[1:]])
    network.settle()
    assert all(other.record.has(Kind.CORRECTION, "0", "0-key") for other in network.peers.values())


def test_sample_ids_never_leave_their_peer() -> None:
    """Others learn that samples were deleted and how many, not which."""
    network = trained_network(FIVE)
    forget(network, "1", samples("1", "secret-id"))
    assert "secret-id" not in str([dict(item.values) for item in network.peers["4"].record.items.values()])


@given(st.lists(st.sampled_from("01234"), min_size=1, max_size=3, unique=True), st.integers(0, 3))
@settings(max_examples=8, deadline=None)
def test_the_mean_model_moves_by_exactly_the_correction_while_rounds_go_on(
    origins: list[str], after: int
) -> None:
    """Models that were sent before a correction was known are corrected before they are mixed in."""
    plain, network = trained_network(FIVE), trained_network(FIVE)
    for number, origin in enumerate(origins):
        for one in (plain, network):
            for _ in range(after):
                one.train()
        network.peers[origin].file(samples(origin, str(number)), "key")
    for _ in range(3):
        plain.train()
        network.train()
    np.testing.assert_allclose(mean(network), mean(plain) + 2.0 * len(origins))


def test_a_stale_model_of_a_neighbour_is_corrected_before_it_is_mixed_in() -> None:
    """An offer from before the correction counts as if it had included it."""
    peer = counting_peer("a", from_edges("ab", [("a", "b")]), Journal())
    for item in asked("b", "a"):
        peer.receive(item)
    peer.accept(ModelOffer(sender="b", round=0, vector=np.full(3, 4.0), applied=frozenset()))
    peer.receive(correction_item("b"))
    do_round(peer)
    np.testing.assert_allclose(peer.model.vector, [(0 + 1 + 4 + 1) / 2, (0 + 4) / 2, (0 + 4) / 2])


def test_a_peer_that_has_trained_once_has_trained() -> None:
    """What it deletes later is in the model, though a round of its own moves nothing."""
    peer = counting_peer("0", FOUR, Journal())
    trained = []
    for move in (0.0, 1.0, 0.0):
        do_round(peer, move, patient=False)
        trained.append(peer.model.has_trained)
    assert trained == [False, True, True]


def test_a_model_of_a_peer_that_is_no_neighbour_is_dropped() -> None:
    """It has no weight in the mixture."""
    peer = counting_peer("0", FOUR, Journal())
    for sender in "12":
        peer.accept(ModelOffer(sender=sender, round=0, vector=np.ones(3), applied=frozenset()))
    assert set(peer.models.usable_offers(0)) == {"1"}


def test_an_offer_with_an_unknown_correction_waits() -> None:
    """Mixed in, the correction would later be added a second time."""
    peer = counting_peer("a", from_edges("ab", [("a", "b")]), Journal())
    peer.receive(member_item("b", "a"))
    peer.accept(ModelOffer(sender="b", round=0, vector=np.ones(3), applied=frozenset({"correction/b/x"})))
    assert peer.next_round() is None
