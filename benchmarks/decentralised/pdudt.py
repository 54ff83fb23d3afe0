"""PDUDT, the baseline: subtract what a client's gradients have become in every peer's model.

    X_{t+1} = Q X_t + G_t      models (N, d), G_t row i the move of peer i's local training in round t
    A_{t+1} = Q A_t + e_c G_t[c]      the part of X that client c's moves account for, A_0 = 0

Unrolled, A_T[i] = Σ_t (Q^{T−1−t})_{ic} G_t[c]: the target's accumulated gradients, weighted by Q as it mixed. The
unlearned models are X_T − A_T plus noise, and a number of ordinary rounds follow to repair them. It takes out c's moves
as they were made; how c's presence changed the others' moves stays.

The recursion needs (N, d) numbers for a target where the gradients' history needs rounds × d; both give
the same sum while the graph stays. Built from the description in the decentralised paper, not from its authors' code.

Source: Qiao et al., PDUDT: Provable Decentralized Unlearning under Dynamic Topologies, as described by Wu et al.,
sections I, II and IV-E.
"""

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import NumericalError

Models = NDArray[np.floating]


def influence_after(influence: Models, weights: NDArray[np.float64], target: int, move: Models) -> Models:
    """Compute A_{t+1} (N, d) from A_t, Q (N, N) of this round and the target's move (d,).

    Raises:
        NumericalError: shapes do not fit, or there is no such peer.
    """
    num_peers, dimension = influence.shape
    if weights.shape != (num_peers, num_peers) or move.shape != (dimension,) or not 0 <= target < num_peers:
        raise NumericalError(
            f"Influences of shape {influence.shape} do not fit weights {weights.shape}, a move {move.shape} and "
            f"the target {target}."
        )
    after: Models = weights @ influence
    after[target] += move
    return after


def without_influence(
    models: Models, influence: Models, *, sigma: float, generator: np.random.Generator
) -> Models:
    """Compute X − A + N(0, σ²), shape (N, d). The target's own row is of no use afterwards."""
    noise = sigma * generator.standard_normal(models.shape) if sigma else 0.0
    unlearned: Models = (models - influence + noise).astype(models.dtype)
    return unlearned
