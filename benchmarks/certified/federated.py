"""HF-online in a federation beside exact federated retraining: the error, its proven bound, and what noise it takes.

    python -m benchmarks.certified.federated --output docs/results/certified-federated --seeds 3

L2-regularised logistic regression on digits. Vectors are carried as on the live federation (the same classes),
without a network. The first client leaves; retraining has the same start, batches and participants. σ is that of one
deletion at (ε, δ), by the proven bound.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.data import accuracy_percent, sites_and_test
from benchmarks.tables import Row, grouped, median, provenance, table, write
from unlearning.certified.linear_head import feature_norm
from unlearning.certified.noise import add_noise, analytic_sigma
from unlearning.certified.sensitivity import Sensitivity
from unlearning.local import begin, learn
from unlearning.methods.hf_online_bound import KeptBound
from unlearning.methods.hf_online_kept import kept_vector
from unlearning.methods.hf_online_vectors import CarryVectors
from unlearning.parameters import Vector, content_hash
from unlearning.runtime.stores import MemoryStore
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings

METHOD = "hf-online"
LEAVES = "0"
FEDERATIONS = ((10, 10, 0.1), (10, 30, 0.5), (30, 30, 0.5), (30, 30, 0.1), (60, 30, 0.1))
"""Numbers of clients, of rounds, and the weight of the L2 term."""
COLUMNS = {
    "distance": "distance",
    "error": "error",
    "bound": "bound Δ",
    "sigma": "σ",
    "before": "before %",
    "unlearned": "unlearned %",
    "noisy": "noise %",
    "retrained": "retrained %",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One federation: its clients' data, how they train, for how many rounds."""

    task: Task
    data: dict[str, Examples]
    training: TrainingSettings
    rounds: int


def main(
    output: Annotated[Path, typer.Option(help="Where the table goes, without suffix.")],
    seeds: int = 3,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    max_examples: int = 0,
) -> None:
    """Measure error, bound, noise and accuracy for numbers of clients, rounds and weights of the L2 term."""
    rows: list[Row] = []
    for clients, rounds, l2 in FEDERATIONS:
        for seed in range(seeds):
            rows.append(measure_federation(clients, rounds, l2, seed, epsilon, delta, max_examples))
    lines = [
        "# HF-online in a federation: error, proven bound, noise",
        "",
        "Digits, logistic regression, IID, η = 0.05, one local epoch in batches of 32, float64; one client leaves; "
        f"σ for ε = {epsilon:g}, δ = {delta:g}. Medians of seeds 0 to {seeds - 1}. {provenance()}.",
        "",
        "Distance, error: of the model to exact retraining before and after the addition. Bound: the proven Δ. "
        "Accuracies: of the model before, unlearned, unlearned with noise, retrained.",
        "",
    ]
    groups = grouped(rows, ("clients", "rounds", "l2"))
    cells = [[*key, *(median(mine, column) for column in COLUMNS)] for key, mine in groups.items()]
    write(output, lines + table(["clients", "rounds", "L2", *COLUMNS.values()], cells), {"rows": rows})


def measure_federation(
    clients: int, rounds: int, l2: float, seed: int, epsilon: float, delta: float, max_examples: int
) -> Row:
    """Return one federation's figures."""
    settings = TaskSettings(
        dataset="digits", num_clients=clients, dtype="float64", seed=seed, max_examples=max_examples
    )
    data, test = sites_and_test(settings)
    setup = Setup(
        task=make_task(settings),
        data=data,
        training=TrainingSettings(learning_rate=0.05, batch_size=32, weight_decay=l2, seed=seed),
        rounds=rounds,
    )
    radius = max(feature_norm(setup.task, examples) for examples in setup.data.values())
    options = CarryVectors(clients=frozenset({LEAVES}), feature_norm=radius)
    model, store = train_federation(setup, options)
    exact = retrain_without(setup, frozenset({LEAVES}))
    unlearned, sensitivity = delete_by_addition(setup, options, store, model, frozenset({LEAVES}))
    sigma = analytic_sigma(epsilon=epsilon, delta=delta, sensitivity=sensitivity.value)
    models = {
        "before": model,
        "unlearned": unlearned,
        "noisy": add_noise(unlearned, sigma, np.random.default_rng(seed)),
        "retrained": exact,
    }
    accuracies = {name: accuracy_percent(setup.task, one, test) for name, one in models.items()}
    return {
        "clients": clients,
        "rounds": rounds,
        "l2": l2,
        "seed": seed,
        "feature_norm": radius,
        "distance": float(np.linalg.norm(model - exact)),
        "error": float(np.linalg.norm(unlearned - exact)),
        "bound": sensitivity.value,
        "sigma": sigma,
        **accuracies,
    }


def train_federation(setup: Setup, options: CarryVectors) -> tuple[Vector, MemoryStore]:
    """Return the federation's model (d,), and the store that has the vectors and the rounds' lengths."""
    prepared = {METHOD: options}
    start = begin(setup.task, setup.training, prepared)
    learnt = learn(setup.task, setup.data, start, rounds=setup.rounds)
    return learnt.parameters, learnt.stores[METHOD]


def delete_by_addition(
    setup: Setup,
    options: CarryVectors,
    store: MemoryStore,
    model: Vector,
    leaving: frozenset[str],
) -> tuple[Vector, Sensitivity]:
    """Return the model (d,) with the vectors of those who leave added, and the proven bound."""
    unlearned = model.copy()
    for client in sorted(leaving):
        vector = kept_vector(options, store, client)
        assert vector is not None, "it was named before training"
        unlearned += vector
    bound = KeptBound(options, store, lambda: begin(setup.task, setup.training).parameters)
    sensitivity, unmet = bound(leaving, content_hash(model), earlier=(), declared=None, unmet=())
    assert sensitivity is not None, unmet
    return unlearned, sensitivity


def retrain_without(setup: Setup, leaving: frozenset[str]) -> Vector:
    """Return the same rounds without the clients that leave."""
    staying = {client: examples for client, examples in setup.data.items() if client not in leaving}
    start = begin(setup.task, setup.training)
    return learn(setup.task, staying, start, rounds=setup.rounds).parameters


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    typer.run(main)
