"""Deletions of samples, classes and clients among peers in one process, down to retraining."""

import math
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest

from benchmarks.decentralised.in_process import InProcessNetwork
from client.peer.gossip import Kind
from client.peer.journal import Journal
from client.peer.learner import SiteLearner
from client.peer.record import PeerRules
from tests.federation import client
from tests.peers import (
    FOUR,
    L2,
    counting_peer,
    counting_peers,
    forget,
    logistic_peers,
    samples,
    trained_network,
)
from unlearning.certified.noise import gaussian_epsilon
from unlearning.curvature.gradients import gradient
from unlearning.decentralised.calibration import NoiseSettings
from unlearning.decentralised.corrections import CorrectionSettings, PeerCurvature
from unlearning.decentralised.graphs import complete
from unlearning.errors import AlreadyForgotten, ConflictingRequest
from unlearning.parameters import Vector
from unlearning.requests import Granularity, Target
from unlearning.tasks.task import join
from unlearning.testing.convex import minimiser

GRAPH = complete("0123")
EXACT = CorrectionSettings(l2=L2)
DIAGONAL = CorrectionSettings(curvature=PeerCurvature.FISHER_DIAGONAL, l2=L2, damping=0.1)
WITH_4 = PeerRules(members=frozenset("4"))
"""Peer 4 may join."""


def settled(
    corrections: CorrectionSettings = EXACT, *, shared: bool = True, start: Vector | None = None
) -> InProcessNetwork:
    """Four peers that have unequally many examples; their models are the minimiser over everybody, or `start`."""
    rules = PeerRules(rounds=1, fine_tuning_rounds=0, shared_curvature=shared)
    network = InProcessNetwork(logistic_peers(GRAPH, rules, corrections))
    network.train()
    best = optimum(network) if start is None else start
    for peer in network.peers.values():
        peer.models.keep(type(peer.model)(round=1, vector=best, has_trained=True))
    return network


def optimum(network: InProcessNetwork, *, without: str = "") -> Vector:
    """The minimiser over what no peer has forgotten."""
    parts = []
    for peer in network.peers.values():
        assert isinstance(peer.learner, SiteLearner)
        if peer.name != without:
            parts.append(peer.learner._without(peer.forget_set()))
    return minimiser(peer.learner.task, reduce(join, parts), L2, peer.model.vector)


@pytest.fixture(scope="module")
def start() -> Vector:
    """The minimiser over everybody, found once."""
    return next(iter(settled().peers.values())).model.vector


def gap(network: InProcessNetwork, start: Vector, at: str, *, without: str = "") -> float:
    """Distance of a peer's model to the retrained minimum over that before the deletion."""
    target = optimum(network, without=without)
    return float(np.linalg.norm(network.peers[at].model.vector - target) / np.linalg.norm(start - target))


def test_deleted_samples_are_taken_out_of_every_peers_model(start: Vector) -> None:
    """With everybody's curvature less than 10 % of the way to retraining is left, at a peer that is not the origin."""
    network = settled(start=start)
    learner = network.peers["1"].learner
    assert isinstance(learner, SiteLearner)
    ids = learner.examples.ids[:5].tolist()
    forget(network, "1", samples("1", *ids))
    assert gap(network, start, at="3") < 0.1


def test_a_class_is_taken_out_at_every_peer(start: Vector) -> None:
    """Each peer corrects its part with the number of deleted examples of all; together it is a Newton step."""
    network = settled(start=start)
    forget(network, "2", Target(Granularity.CLASS, class_label=2))
    assert gap(network, start, at="0") < 0.5  # a third of all examples: what a Newton step leaves
    assert len(list(network.peers["0"].record.of(Kind.CORRECTION))) == 4


def test_a_client_is_taken_out_and_leaves_the_graph(start: Vector) -> None:
    """The rest gets near retraining without it, mixes without it, and keeps no peer's curvature for it."""
    network = settled(start=start)
    forget(network, "3", client("3"))
    assert gap(network, start, at="0", without="3") < 0.4
    assert all(peer.graph.nodes == ("0", "1", "2") for peer in network.peers.values())
    assert network.peers["3"].has_left
    kept = [item.vector for item in network.peers["0"].record.of(Kind.STATISTICS)]
    assert kept == [None] * 3, "curvatures are dropped once the correction is there: each is a matrix"


def test_the_fisher_diagonal_takes_a_client_out_in_the_right_direction(start: Vector) -> None:
    """Vectors of d numbers instead of matrices; the damped step still goes towards retraining."""
    network = settled(DIAGONAL, shared=False, start=start)
    forget(network, "3", client("3"))
    moved = network.peers["0"].model.vector - start
    wanted = optimum(network, without="3") - start
    assert moved @ wanted > 0.3 * np.linalg.norm(moved) * np.linalg.norm(wanted)


def test_a_round_moves_the_mean_along_the_gradient_over_all_examples() -> None:
    """Learning rates scaled by the peers' sizes: every example counts the same, though peers differ in size."""
    network = InProcessNetwork(logistic_peers(GRAPH, PeerRules(), EXACT, learning_rate=0.3))
    before = network.peers["0"].model.vector
    learners = [peer.learner for peer in network.peers.values()]
    everything = reduce(join, (learner.examples for learner in learners))  # type: ignore[attr-defined]
    network.train()
    mean = np.mean([peer.model.vector for peer in network.peers.values()], axis=0)
    slope = gradient(learners[0].task, before, everything, l2=0.0)  # type: ignore[attr-defined]
    np.testing.assert_allclose(mean, before - 0.3 * (slope + L2 * before), atol=1e-12)


def test_one_round_of_fine_tuning_follows_a_deletion() -> None:
    """When training has ended, a deletion opens one more round, and no second one."""
    network = InProcessNetwork(counting_peers(FOUR, PeerRules(rounds=2, fine_tuning_rounds=1)))
    while network.train():
        pass
    assert {peer.model.round for peer in network.peers.values()} == {2}
    network.peers["1"].file(samples("1", "5"), "key")
    while network.train():
        pass
    assert {peer.model.round for peer in network.peers.values()} == {3}


def test_a_deletion_before_training_needs_no_correction() -> None:
    """What no model has seen is left out of training, and nothing is added to the models."""
    network = InProcessNetwork(counting_peers(FOUR))
    forget(network, "1", samples("1", "5"))
    (correction,) = network.peers["2"].record.of(Kind.CORRECTION)
    assert correction.vector is None
    assert network.peers["2"].record.counts()["1"] == 9


def test_a_class_deletion_counts_the_examples_of_all_peers() -> None:
    """Each peer's correction is weighted with what the class has at everybody, not with its own part."""
    network = trained_network(FOUR)
    forget(network, "0", Target(Granularity.CLASS, class_label=4))
    for peer in network.peers.values():
        (order,) = peer.learner.orders  # type: ignore[attr-defined]
        assert (order.counts.num_examples, order.counts.num_deleted) == (40, 4)


def test_samples_deleted_twice_are_taken_out_once() -> None:
    """A second request about the same samples counts only what is new in it."""
    network = trained_network(FOUR)
    forget(network, "1", samples("1", "1", "2"), "first")
    forget(network, "1", samples("1", "2", "3"), "second")
    _, second = network.peers["1"].learner.orders  # type: ignore[attr-defined]
    assert second.before.sample_ids == {"1", "2"}
    assert network.peers["0"].record.counts()["1"] == 7


def test_a_peer_that_has_left_takes_no_further_request() -> None:
    """Everything is forgotten already."""
    network = trained_network(FOUR)
    forget(network, "1", client("1"), "first")
    with pytest.raises(AlreadyForgotten):
        network.peers["1"].file(samples("1", "5"), "second")


def test_a_key_is_one_requests_alone() -> None:
    """Filed again it is the same request; for something else it is refused, instead of being taken for that one."""
    network = trained_network(FOUR)
    peer = network.peers["1"]
    assert peer.file(samples("1", "5"), "key") == peer.file(samples("1", "5"), "key")
    with pytest.raises(ConflictingRequest):
        peer.file(samples("1", "6"), "key")
    assert peer.forget_set().sample_ids == {"5"}


def test_a_client_deletion_waits_for_a_peer_that_is_down() -> None:
    """Its curvature is needed; when it is back the deletion goes on."""
    network = trained_network(FOUR)
    network.down.add("2")
    forget(network, "0", client("0"))
    assert not network.peers["0"].has_left
    network.down.clear()
    network.settle()
    assert network.peers["0"].has_left
    assert network.peers["2"].graph.nodes == ("1", "2", "3")


def test_a_peer_that_joins_takes_over_the_model_and_is_trained_with() -> None:
    """It names its neighbours; all peers learn of it, and it begins where the others are."""
    network = InProcessNetwork(counting_peers(FOUR, WITH_4))
    for _ in range(3):
        network.train()
    forget(network, "1", samples("1", "5"))
    model = network.peers["0"].model
    grown = FOUR.join("4", ("0", "2"))
    network.peers["4"] = counting_peer("4", grown, Journal(), WITH_4)
    network.settle()
    np.testing.assert_allclose(network.peers["4"].model.vector, model.vector)
    assert network.train()
    assert all(peer.graph == grown for peer in network.peers.values())
    assert {peer.model.round for peer in network.peers.values()} == {4}


def test_a_peer_that_is_not_listed_does_not_join() -> None:
    """It has a place in the network and no leave to join: no peer takes its items or models, and rounds go on."""
    network = trained_network(FOUR)
    network.peers["4"] = counting_peer("4", FOUR.join("4", ("0", "2")), Journal())
    network.settle()
    assert network.train()
    assert network.peers["1"].graph == FOUR
    assert {(sender, to) for sender, to, _ in network.refusals} == {("4", "0"), ("4", "2")}


def test_a_correction_that_cannot_be_computed_says_why() -> None:
    """Forgetting every sample leaves nothing to retain: no vector, a reason, and no training on them."""
    network = InProcessNetwork(logistic_peers(GRAPH, PeerRules(rounds=1), EXACT))
    network.train()
    learner = network.peers["1"].learner
    assert isinstance(learner, SiteLearner)
    ids = learner.examples.ids.tolist()
    forget(network, "1", samples("1", *ids))
    (item,) = network.peers["0"].record.of(Kind.CORRECTION)
    assert item.vector is None
    assert "example" in item.values["reason"]


def trained_with_noise(epsilon: float) -> InProcessNetwork:
    """Four peers after a round; peer 1 adds noise to its corrections by the Fisher diagonal."""
    network = InProcessNetwork(logistic_peers(GRAPH, PeerRules(rounds=1), DIAGONAL))
    learner = network.peers["1"].learner
    assert isinstance(learner, SiteLearner)
    network.peers["1"].learner = replace(learner, noise=NoiseSettings(epsilon=epsilon, delta=1e-5))
    network.train()
    return network


def test_noise_with_a_fisher_matrix_is_not_called_certified() -> None:
    """The bound is for the Hessian, and the sentence that travels with the correction says so."""
    network = trained_with_noise(epsilon=1.0)
    forget(network, "1", samples("1", "0", "1"))
    (item,) = network.peers["2"].record.of(Kind.CORRECTION)
    statement = item.values["account"]["certificate"]
    assert statement.startswith("Calibrated noise, not certified")
    assert "the bound is for the Hessian" in statement


def test_every_peer_adds_up_what_all_deletions_with_noise_have_used() -> None:
    """Two corrections of Δ/σ each use the ε of one with √2·Δ/σ; without any there is no account."""
    network = trained_with_noise(epsilon=0.5)
    other = network.peers["2"]
    assert other.record.spent_budget(delta=1e-5, epsilon=0.5) is None
    forget(network, "1", samples("1", "0"), "first")
    forget(network, "1", samples("1", "1"), "second")
    account = other.record.spent_budget(delta=1e-5, epsilon=0.5)
    assert account is not None
    releases = [item.values["account"]["release"] for item in other.record.of(Kind.CORRECTION)]
    ratio = math.hypot(*(release["sensitivity"]["value"] / release["sigma"] for release in releases))
    assert account["num_releases"] == len(releases) == 2
    assert account["spent_epsilon"] == pytest.approx(
        gaussian_epsilon(delta=1e-5, sigma=1.0, sensitivity=ratio)
    )
    assert account["spent_epsilon"] > 0.5 == account["budget_epsilon"]
    assert account["basis"] == "empirical"
