"""What a member may bring to the others, and how little a liar among the neighbours moves."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.decentralised.in_process import InProcessNetwork
from client.peer.gossip import GossipMessage, Greeting, Kind, ModelOffer, validate_item
from client.peer.journal import Journal
from client.peer.peer import Peer
from client.peer.record import PeerRules
from tests.peers import (
    FOUR,
    CountingLearner,
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
from tests.raising import raises
from unlearning.certified.sensitivity import logistic_constants
from unlearning.decentralised.calibration import correction_bound
from unlearning.decentralised.graphs import from_edges
from unlearning.errors import FlowerUnlearningError, NumericalError, UpdateRefused

SMALL = PeerRules(correction_norm=2.0, max_requests=12)
CONSTANTS = logistic_constants(feature_norm=1.0, weight_norm=1.0, l2=0.5, features_from="a test")


def statistics(origin: str, subject: str, **values: object) -> GossipMessage:
    numbers = {"num_examples": 9, "deleted": 1, **values}
    return GossipMessage(kind=Kind.STATISTICS, origin=origin, subject=subject, values=numbers)


@pytest.mark.parametrize("shares_matrices", [False, True])
def test_only_shared_curvatures_have_a_number_for_each_pair_of_parameters(shares_matrices: bool) -> None:
    """Where peers share them; anything else of that length is refused, before room is kept for it."""
    matrix = np.ones(9)
    curvature = replace(statistics("1", "1-key"), vector=matrix)
    items = [(curvature, shares_matrices), (replace(correction_item("1"), vector=matrix), False)]
    for item, is_taken in items:
        with nullcontext() if is_taken else pytest.raises(UpdateRefused):
            validate_item(item, 3, shares_matrices=shares_matrices)


def listening_peer(rules: PeerRules | None = None) -> Peer:
    """Peer 0 of four, which knows the others."""
    peer = counting_peer("0", FOUR, Journal(), rules)
    for name in "123":
        peer.receive(member_item(name, *FOUR.neighbours(name)), "1")
    return peer


def hear(peer: Peer, senders: str, round_number: int, value: float = 1.0) -> None:
    """Let models of a round come from each of the `senders`."""
    for sender in senders:
        vector = np.full(3, value)
        peer.accept(ModelOffer(sender=sender, round=round_number, vector=vector, applied=frozenset()))


def refused(peer: Peer, item: GossipMessage, code: str) -> None:
    before = peer.model
    with raises(FlowerUnlearningError, code):
        peer.receive(item, "1")
    assert peer.model is before
    assert item.id not in peer.record.items


def test_a_correction_longer_than_the_limit_is_refused() -> None:
    """25,000 where 2 are allowed."""
    peer = listening_peer(SMALL)
    peer.receive(request_item("1"), "1")
    refused(peer, correction_item("1", 25_000.0), "correction-too-long")
    assert peer.receive(correction_item("1", 2.0), "1")


def test_many_corrections_of_one_peer_move_a_model_by_ten_limits_at_most() -> None:
    """The eleventh is refused."""
    peer = listening_peer(replace(SMALL, max_requests=20))
    taken = 0
    for number in range(12):
        peer.receive(request_item("1", f"{number}"), "1")
        try:
            taken += peer.receive(correction_item("1", 2.0, key=f"{number}", deleted=number < 9), "1")
        except FlowerUnlearningError:
            continue
    assert taken <= 10
    assert np.linalg.norm(peer.model.vector) <= 20.0


def test_a_correction_is_bounded_by_what_it_takes_out() -> None:
    """With the constants known, one of forty examples moves a model by 10 L/(40 λ) at most."""
    peer = listening_peer(PeerRules(constants=CONSTANTS))
    peer.receive(request_item("1"), "1")
    bound = correction_bound(CONSTANTS, num_examples=40, num_deleted=1)
    assert bound == pytest.approx(10 * CONSTANTS.gradient_bound / (0.5 * 40))
    refused(peer, correction_item("1", 1.01 * bound), "correction-too-long")
    assert peer.receive(correction_item("1", 0.99 * bound), "1")


def test_there_is_no_bound_without_examples() -> None:
    """A division by zero would be one of infinity."""
    with pytest.raises(NumericalError):
        correction_bound(CONSTANTS, num_examples=0, num_deleted=0)


def test_a_correction_that_takes_nothing_out_and_moves_nothing_is_taken() -> None:
    """The request has its answer, and no model moves."""
    peer = listening_peer()
    peer.receive(request_item("1"), "1")
    before = peer.model.vector
    peer.receive(replace(correction_item("1", deleted=0), vector=None), "1")
    assert [one.subject for one in peer.record.of(Kind.CORRECTION)] == ["1-key"]
    np.testing.assert_array_equal(peer.model.vector, before)


@pytest.mark.parametrize(
    ("item", "code"),
    [
        (correction_item("2"), "unknown-request"),
        (replace(correction_item("2"), subject="1-key"), "not-owed"),
        (correction_item("1", deleted=0), "takes-nothing-out"),
        (correction_item("1", deleted=11), "too-many-examples"),
        (correction_item("1", leaves=True), "not-owed"),
        (correction_item("1", account={"release": {"sigma": 1}}), "malformed-item"),
        (correction_item("1", account=[[]]), "malformed-item"),
        (correction_item("1", unheard="of"), "malformed-item"),
        (correction_item("1", reason="x" * 100_000), "malformed-item"),
        (replace(correction_item("1"), vector=np.ones(3, dtype=np.int64)), ""),
        (correction_item("1", 1e300), "correction-too-long"),
        (statistics("2", "1-key"), "not-requested"),
        (statistics("2", "1-class", num_examples=10**6), "too-many-examples"),
        (request_item("2", curvature="yes"), "malformed-item"),
        (replace(request_item("2"), subject="1-mine"), "wrong-request-id"),
        (member_item("3", num_examples=10**30), "malformed-item"),
        (GossipMessage(kind=Kind.MEMBER, origin="3", values={"num_examples": 4}), "malformed-item"),
        (correction_item("1", weight=7.0), "malformed-item"),
        (replace(correction_item("1"), vector=np.ones(2)), "wrong-length"),
        (replace(correction_item("1"), vector=np.array([1.0, np.nan, 0.0])), "not-finite"),
    ],
)
def test_what_does_not_fit_a_request_is_refused(item: GossipMessage, code: str) -> None:
    """Peer 1 asked for some of its samples and for a class."""
    peer = counting_peer("0", FOUR, Journal(), SMALL)
    for known in (
        member_item("1", "0", "2"),
        member_item("2", "1", "3"),
        request_item("1"),
        request_item("1", "class", granularity="class", class_label=3),
    ):
        peer.receive(known, "1")
    refused(peer, item, code)


def test_a_peer_issues_no_more_requests_than_are_allowed() -> None:
    """Each is kept at every peer."""
    peer = listening_peer(SMALL)
    for number in range(12):
        peer.receive(request_item("1", f"{number}"), "1")
    refused(peer, request_item("1", "more"), "too-many-requests")


def test_only_listed_peers_request_that_a_class_is_forgotten() -> None:
    """A class stops being trained at every peer."""
    peer = listening_peer(PeerRules(class_requests_from=frozenset("2")))
    refused(peer, request_item("1", granularity="class", class_label=3), "class-not-allowed")
    assert peer.receive(request_item("2", granularity="class", class_label=3), "1")


def test_a_declared_number_counts_up_to_ten_times_the_median() -> None:
    """A peer that says it has a million examples does not still the others' learning rates."""
    peer = counting_peer("0", FOUR, Journal())
    for name, count in (("1", 10), ("2", 10), ("3", 10**6)):
        peer.receive(member_item(name, *FOUR.neighbours(name), num_examples=count), "1")
    assert peer.record.counts() == {"0": 10, "1": 10, "2": 10, "3": 100}


def test_a_correction_that_others_would_refuse_is_not_sent() -> None:
    """Its origin says why instead, and does not train on the examples any more."""
    network = trained_network(FOUR, SMALL)
    forget(network, "1", samples("1", "5"))
    (item,) = network.peers["3"].record.of(Kind.CORRECTION)
    assert item.vector is None
    assert "limits.correction-norm" in item.values["reason"]
    assert network.refusals == []


def test_an_error_in_a_correction_is_reported() -> None:
    """Other peers' numbers go into it, so nothing that they bring may end the process."""

    class Breaking(CountingLearner):
        def correction(self, order: object) -> object:  # type: ignore[override]
            raise ZeroDivisionError("by others' numbers")

    network = trained_network(FOUR)
    network.peers["1"].learner = Breaking("1")
    forget(network, "1", samples("1", "5"))
    (item,) = network.peers["3"].record.of(Kind.CORRECTION)
    assert item.values["reason"] == "ZeroDivisionError: by others' numbers"


def test_one_neighbour_that_claims_a_late_round_moves_no_peer() -> None:
    """Round 10^9 of one neighbour; the other is at round 1."""
    peer = listening_peer()
    hear(peer, "1", 10**9)
    assert peer.model.round == 0
    hear(peer, "3", 0)
    do_round(peer, 1.0)
    assert peer.model.round == 1


def test_a_peer_catches_up_with_two_neighbours() -> None:
    """To the round that both have reached, not to that of the one ahead."""
    peer = listening_peer()
    hear(peer, "13", 0)
    do_round(peer)
    hear(peer, "1", 10**9)
    hear(peer, "3", 7)
    do_round(peer)
    assert peer.model.round == 8


def test_a_jump_ends_with_training() -> None:
    """Two neighbours that lie together do not lead past the last round."""
    peer = listening_peer(PeerRules(rounds=5))
    hear(peer, "13", 0)
    begun = peer.next_round()
    assert begun is not None
    hear(peer, "13", 10**9)
    peer.finish_round(begun, np.zeros(3))
    assert peer.model.round <= 5


def test_a_model_for_a_finished_round_is_not_mixed_in() -> None:
    """It came too late, or was replayed."""
    peer = listening_peer()
    for number in (0, 1):
        hear(peer, "13", number, value=0.0)
        do_round(peer, 1.0)
    hear(peer, "1", 0, value=9.0)
    hear(peer, "3", 2, value=0.0)
    assert peer.missing() == ["1"]


def test_a_model_far_longer_than_the_own_one_is_refused() -> None:
    """One such model would be all of the mixture."""
    peer = listening_peer()
    with raises(UpdateRefused, "model-too-long"):
        hear(peer, "1", 0, value=1e30)


def test_statistics_are_no_part_of_a_models_length() -> None:
    """A neighbour's running variance of a million is that of its inputs."""
    peer = counting_peer("0", FOUR, Journal(), PeerRules(buffers=(0, 2)))
    offer = ModelOffer(sender="1", round=0, vector=np.array([1e6, 1.0, 1e6]), applied=frozenset())
    peer.accept(offer)
    with raises(UpdateRefused, "model-too-long", norm=1e6):
        peer.accept(replace(offer, vector=np.array([1.0, 1e6, 1.0])))


def test_models_of_peers_that_are_no_neighbours_are_dropped() -> None:
    """Peer 2 is a member on the other side of the ring."""
    peer = listening_peer()
    hear(peer, "12", 0)
    assert peer.missing() == ["3"]


def test_a_silent_neighbour_is_waited_for_once_and_counts_again_when_it_speaks() -> None:
    """Later rounds go on without it at once, until its model of the round at hand comes."""
    peer = listening_peer()
    hear(peer, "1", 0)
    assert peer.missing() == ["3"]
    peer.models.leave_out(["3"])
    for number in range(3):
        hear(peer, "1", number)
        do_round(peer)
    hear(peer, "3", 3)
    hear(peer, "1", 4)
    do_round(peer)
    assert peer.missing() == ["3"]


def test_a_neighbour_that_was_left_out_and_is_behind_is_waited_for_again_when_it_moves_on() -> None:
    """Otherwise this peer would run ahead of it without end; a repeated old model moves nothing."""
    peer = listening_peer()
    hear(peer, "3", 0)
    for number in range(3):
        hear(peer, "1", number)
        do_round(peer, patient=False)
    hear(peer, "1", 3)
    hear(peer, "3", 0)
    assert peer.missing() == []
    hear(peer, "3", 1)
    assert peer.missing() == ["3"]


def test_a_neighbour_that_starts_again_gets_the_earlier_model_first() -> None:
    """With the later one alone it would begin its round, and mix another one than those that never stopped."""
    peer = listening_peer()
    hear(peer, "13", 0)
    do_round(peer)
    peer.outbox("1").confirm(Greeting("0"), frozenset(peer.record.items))
    rounds = []
    while (payload := peer.outbox("1").next_payload()) is not None:
        assert isinstance(payload, ModelOffer)
        rounds.append(payload.round)
        peer.outbox("1").confirm(payload)
    assert rounds == [0, 1]


def test_the_wait_halves_each_time_a_neighbour_falls_silent_again() -> None:
    """Down to a sixty-fourth: a peer that sends once after each silence delays the others less and less."""
    peer = listening_peer()
    shares = []
    for number in range(8):
        shares.append(peer.models.patience(["3"]))
        peer.models.leave_out(["3"])
        hear(peer, "3", number)
    assert shares == [0.5**number for number in (0, 1, 2, 3, 4, 5, 6, 6)]


def test_training_begins_without_members_that_never_spoke_when_patience_ends() -> None:
    """Peer 2 is listed and has never been there."""
    graph = from_edges("012", [("0", "1"), ("1", "2"), ("0", "2")])
    network = InProcessNetwork(peer for peer in counting_peers(graph) if peer.name != "2")
    network.settle()
    assert network.peers["0"].missing() == ["2"]
    assert network.train(patient=False)
    assert network.train(patient=False)
    assert {peer.model.round for peer in network.peers.values()} == {2}
