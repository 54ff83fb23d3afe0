"""One round of D-PSGD at one peer: x_i ← Σ_j Q_ij x_j − γ ∇F_i(x_i, ξ).

For one step the gradient is taken at the peer's own model, as written, so it can be computed while the neighbours'
models travel. More than one local step, or whole epochs (the paper's experiments), begin at the mixture
z_i = Σ_j Q_ij x_j: x_i ← z_i + (train(z_i) − z_i). Begun at x_i, a move that goes all the way down a steep direction is
x* − x_i, and x ← Q x + x* − x has the factor λ − 1 for each eigenvalue λ of Q: below −1 where λ is negative, as a
ring's −1/3, so that neighbours swing against each other ever more.

Peers of different size: all peers with the same γ minimise the mean of the local losses, in which an example of
a small peer counts for more. With γ_i = γ N n_i/n the federation minimises the mean loss over all examples.

Source: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms? (Algorithm 1).
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from unlearning.errors import NumericalError
from unlearning.parameters import Vector, weighted_sum
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, train


def example_scale(num_examples: int, total: int, num_peers: int) -> float:
    """Compute N n_i/n, by which a peer's learning rate is scaled so that every example counts the same."""
    return num_peers * num_examples / total


def local_move(
    task: Task,
    parameters: Vector,
    examples: Examples,
    settings: TrainingSettings,
    *,
    num_steps: int = 0,
    scale: float = 1.0,
) -> Vector:
    """Return where local training leads from `parameters` (d,), as a difference (d,): −γ∇F for one step.

    num_steps: of SGD; 0 for `settings.epochs` epochs. scale: of the learning rate.

    Raises:
        DataError: there is no example to train on.
    """
    scaled = replace(settings, learning_rate=settings.learning_rate * scale)
    taken = count(1)
    stop = (lambda _: next(taken) >= num_steps) if num_steps else None
    trained = train(task, parameters, examples, scaled, stop)
    move: Vector = trained.parameters - parameters
    return move


def mix(own: str, row: Mapping[str, float], models: Mapping[str, Vector]) -> Vector:
    """Compute Σ_j Q_ij x_j (d,), summed in float64 in the order of ids.

    The weight of a neighbour whose model is missing goes to the peer's own model: two peers that miss each other
    keep Q symmetric and doubly stochastic.

    Raises:
        NumericalError: the peer's own model is missing.
    """
    if own not in models:
        raise NumericalError(f"Mixing at peer {own!r} needs its own model.")
    missing = sum(weight for other, weight in row.items() if other not in models)
    shares = {**row, own: row.get(own, 0.0) + missing}
    return weighted_sum([(shares.get(other, 0.0), models[other]) for other in sorted(models)])
