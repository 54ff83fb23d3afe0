"""How much a peer takes of each neighbour's model, and how fast that brings all models together.

    Q    weights (N, N), symmetric, rows and columns sum to 1       ρ    max(|ρ₂(Q)|, |ρ_N(Q)|)², below 1

Source: Xiao, Boyd & Kim, Distributed average consensus with least-mean-square deviation, for the
Metropolis-Hastings weights; Wu et al., Certified Unlearning in Decentralized Federated Learning, Assumption 1
and Lemma 1, for ρ.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearning.decentralised.graphs import Graph
from unlearning.errors import NumericalError

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class MixingReport:
    """ρ of the weights, and what follows for a federation."""

    num_peers: int
    rho: float

    def rounds_to(self, disagreement: float) -> int:
        """Return the fewest rounds k after which mixing alone leaves at most this share of a disagreement:
        √ρ^k.

        Raises:
            NumericalError: the share is not between 0 and 1.
        """
        if not 0 < disagreement < 1:
            raise NumericalError(
                f"A share left of the disagreement lies between 0 and 1, got {disagreement}."
            )
        return 1 if self.rho == 0 else max(1, math.ceil(2 * math.log(disagreement) / math.log(self.rho)))

    def describe(self) -> str:
        """Return one sentence for a log."""
        return (
            f"{self.num_peers} peers, rho = {self.rho:.4f}: mixing alone brings a disagreement to 1 % in "
            f"{self.rounds_to(0.01)} rounds."
        )


def mixing_row(graph: Graph, node: str) -> dict[str, float]:
    """Return row `node` of Q, its own share included: Q_ij = 1/(1 + max(d_i, d_j)) for neighbours, the rest
    is its own.

    Needs the degrees of the neighbours only, so each peer computes its own row. A peer outside the graph
    keeps its model: {node: 1}.
    """
    degree = graph.degree(node)
    row = {other: 1 / (1 + max(degree, graph.degree(other))) for other in graph.neighbours(node)}
    return {**row, node: 1 - sum(row.values())}


def metropolis_weights(graph: Graph) -> NDArray[np.float64]:
    """Compute Q, shape (N, N), in the order of `graph.nodes`."""
    place = {node: index for index, node in enumerate(graph.nodes)}
    weights = np.zeros((len(place), len(place)))
    for node, index in place.items():
        for other, weight in mixing_row(graph, node).items():
            weights[index, place[other]] = weight
    return weights


def check_mixing(weights: NDArray[np.float64]) -> MixingReport:
    """Compute ρ of `weights` (N, N), after checking what the method assumes of them.

    Raises:
        NumericalError: they are not symmetric or not doubly stochastic, or ρ is not below 1: the graph is not
            connected, or models would swing without end.
    """
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1] or not weights.size:
        raise NumericalError(f"Mixing weights are a square matrix, got the shape {weights.shape}.")
    if not np.allclose(weights, weights.T, rtol=0, atol=_TOLERANCE):
        raise NumericalError(
            "The mixing weights are not symmetric: take Metropolis weights of one graph.",
            code="not-symmetric",
        )
    if (weights < -_TOLERANCE).any() or not np.allclose(weights.sum(axis=1), 1, rtol=0, atol=_TOLERANCE):
        raise NumericalError(
            "The mixing weights are not doubly stochastic: rows must sum to 1, none below 0.",
            code="not-doubly-stochastic",
        )
    sizes = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    rho = float(sizes[-2] ** 2) if sizes.size > 1 else 0.0
    if rho >= 1 - _TOLERANCE:
        raise NumericalError(
            f"rho = {rho:.6f} is not below 1, so the peers' models never agree. Is the graph connected?",
            code="not-mixing",
            rho=rho,
        )
    return MixingReport(len(weights), rho)
