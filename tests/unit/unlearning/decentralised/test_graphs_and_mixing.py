"""Graphs of peers and the weights of their models."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.decentralised.pdudt import influence_after, without_influence
from tests.raising import raises
from tests.unit.unlearning.decentralised.graphs import connected_graphs
from unlearning.decentralised.dpsgd import mix
from unlearning.decentralised.graphs import Graph, complete, erdos_renyi, from_edges, ring
from unlearning.decentralised.mixing import check_mixing, metropolis_weights, mixing_row
from unlearning.errors import ConfigurationError, NumericalError

TEN = [str(index) for index in range(10)]


def test_a_ring_gives_every_peer_two_neighbours() -> None:
    """Ten peers in a ring have degree 2 each and are connected."""
    graph = ring(TEN)
    assert [graph.degree(node) for node in TEN] == [2] * 10
    assert graph.is_connected


def test_an_erdos_renyi_graph_is_connected_and_repeats_with_its_seed() -> None:
    """Sparse draws that fall apart are drawn again, the same way for the same seed."""
    graphs = [erdos_renyi(TEN, 0.25, np.random.default_rng(seed)) for seed in (3, 3, 4)]
    assert all(graph.is_connected for graph in graphs)
    assert graphs[0] == graphs[1] != graphs[2]


def test_a_hopeless_edge_probability_is_refused() -> None:
    """Where no draw is connected the error says so instead of returning a graph in pieces."""
    with pytest.raises(ConfigurationError):
        erdos_renyi(TEN, 1e-6, np.random.default_rng(0))


def test_an_edge_to_an_unknown_peer_is_refused() -> None:
    """A typing error in an edge list does not become a peer."""
    with pytest.raises(ConfigurationError):
        from_edges(["0", "1"], [("0", "7")])


@pytest.mark.parametrize(
    ("nodes", "edges"),
    [
        (("a", "b"), {("a", "a"), ("a", "b")}),  # a peer is no neighbour of itself
        (("b", "a"), {("a", "b")}),  # the order of peers is that of models' rows
        (("a", "a", "b"), {("a", "b")}),
    ],
)
def test_a_graph_that_is_none_is_refused(nodes: tuple[str, ...], edges: set[tuple[str, str]]) -> None:
    """An edge from a peer to itself, peers that are not sorted, and a peer named twice."""
    with pytest.raises(ConfigurationError):
        Graph(nodes, frozenset(edges))


@given(connected_graphs(), st.data())
def test_a_graph_that_a_peer_left_is_connected(graph: Graph, data: st.DataObject) -> None:
    """Whoever leaves, the parts that it held together are joined, and messages still reach everybody."""
    leaver = data.draw(st.sampled_from(graph.nodes))
    rest = graph.without(leaver)
    assert rest.is_connected
    assert set(rest.nodes) == {*graph.nodes} - {leaver}


@given(connected_graphs())
@settings(max_examples=50)
def test_metropolis_weights_are_symmetric_and_doubly_stochastic(graph: Graph) -> None:
    """On every connected graph, with rho below 1."""
    weights = metropolis_weights(graph)
    np.testing.assert_allclose(weights, weights.T, atol=1e-15)
    np.testing.assert_allclose(weights.sum(axis=0), 1, atol=1e-12)
    assert (weights >= 0).all()
    assert check_mixing(weights).rho < 1


def test_the_weights_of_a_path_are_those_of_the_formula() -> None:
    """1/(1 + the larger degree) between neighbours, the rest stays."""
    weights = metropolis_weights(from_edges("abc", [("a", "b"), ("b", "c")]))
    np.testing.assert_allclose(weights, [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]])


def test_rho_of_a_ring_is_that_of_its_fourier_modes() -> None:
    """Weights 1/3 on a ring of N have the eigenvalues (1 + 2 cos(2πk/N))/3."""
    expected = ((1 + 2 * np.cos(2 * np.pi / 10)) / 3) ** 2
    assert check_mixing(metropolis_weights(ring(TEN))).rho == pytest.approx(expected)


def test_a_complete_graph_agrees_in_one_round() -> None:
    """Its weights are 1/N everywhere."""
    report = check_mixing(metropolis_weights(complete(TEN)))
    assert report.rho == pytest.approx(0, abs=1e-12)
    assert report.rounds_to(0.01) == 1


def test_a_peer_alone_agrees_with_itself() -> None:
    """Its ρ is exactly 0, which has no logarithm."""
    alone = check_mixing(metropolis_weights(Graph(("a",), frozenset())))
    assert (alone.num_peers, alone.rho, alone.rounds_to(1e-9)) == (1, 0.0, 1)


@pytest.mark.parametrize("share", [0.5, 0.01, 1e-6])
def test_the_rounds_to_an_agreement_are_the_fewest(share: float) -> None:
    """√ρ^k is at most the share, and with one round less it is not."""
    report = check_mixing(metropolis_weights(ring(TEN)))
    rounds = report.rounds_to(share)
    assert report.rho ** (rounds / 2) <= share < report.rho ** ((rounds - 1) / 2)


@given(connected_graphs(most=8))
@settings(max_examples=25)
def test_powers_of_the_weights_go_to_the_mean_as_fast_as_rho_says(graph: Graph) -> None:
    """Lemma 1: the squared spectral distance of Q^k from the mean is at most rho^k."""
    weights = metropolis_weights(graph)
    rho = check_mixing(weights).rho
    mean = np.full_like(weights, 1 / len(weights))
    for power in (1, 3, 7):
        distance = np.linalg.norm(np.linalg.matrix_power(weights, power) - mean, 2)
        assert distance**2 <= rho**power + 1e-12


@pytest.mark.parametrize(
    ("weights", "code"),
    [
        ([[0.5, 0.5], [0.4, 0.6]], "not-symmetric"),
        ([[0.5, 0.4], [0.4, 0.5]], "not-doubly-stochastic"),
        ([[1.0, 0.0], [0.0, 1.0]], "not-mixing"),
        ([[0.0, 1.0], [1.0, 0.0]], "not-mixing"),
    ],
)
def test_weights_that_break_an_assumption_are_refused(weights: list[list[float]], code: str) -> None:
    """Each assumption on Q has its own sentence."""
    with raises(NumericalError, code):
        check_mixing(np.array(weights))


def test_mixing_keeps_the_mean_of_all_models() -> None:
    """Doubly stochastic: nothing is lost or made."""
    graph = erdos_renyi(TEN, 0.4, np.random.default_rng(0))
    models = {node: np.random.default_rng(int(node)).normal(size=5) for node in TEN}
    after = {
        node: mix(node, mixing_row(graph, node), {o: models[o] for o in (node, *graph.neighbours(node))})
        for node in TEN
    }
    np.testing.assert_allclose(sum(after.values()), sum(models.values()))
    np.testing.assert_allclose(
        after["3"], metropolis_weights(graph)[3] @ np.array([models[node] for node in TEN])
    )


def test_a_missing_neighbours_weight_stays_at_home() -> None:
    """With the only neighbour away a peer keeps its model."""
    model = np.array([1.0, -2.0])
    np.testing.assert_allclose(mix("a", {"a": 0.5, "b": 0.5}, {"a": model}), model)


def test_pdudt_takes_out_exactly_what_mixing_spread_of_a_clients_moves() -> None:
    """With moves that do not depend on the models, the rest is as if the client had never moved."""
    generator = np.random.default_rng(0)
    weights = metropolis_weights(ring(TEN[:5]))
    moves = generator.normal(size=(7, 5, 3))
    with_all = without_two = np.zeros((5, 3))
    influence = np.zeros((5, 3))
    for move in moves:
        others = move.copy()
        others[2] = 0
        with_all, without_two = weights @ with_all + move, weights @ without_two + others
        influence = influence_after(influence, weights, 2, move[2])
    unlearned = without_influence(with_all, influence, sigma=0.0, generator=generator)
    np.testing.assert_allclose(unlearned, without_two, atol=1e-12)
