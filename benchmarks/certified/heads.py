"""Certified deletions from a linear head on features of a public network: HF-online and a Newton step, and the noise.

  python -m benchmarks.certified.heads --max-examples 5000 --seeds 3 --data-dir D --output docs/results/certified-heads
  python -m benchmarks.certified.heads --seeds 3 --data-dir D --output docs/results/certified-heads-500

Fifty clients, IID, CIFAR-10 features, float64. *Newton*: the model is the minimum of the joint loss, and a deletion is
one Newton step on what is retained, which a federation computes from sums (`newton-cg`); retraining is the other
minimum.
*HF-online*: rounds of federated averaging with carried vectors; retraining has the same start, batches and rounds.

Bounds on the distance to retraining, each proven:

    worst case    M m² L²/(2 λ³ (n−m)²) and what is not exact, for any data of this feature norm
    residual      ‖∇F_R(θ)‖/λ at the unlearned θ, for F_R, the retained loss, is λ-strongly convex. It is a figure of
                  these data, so σ is set beforehand and a deletion is served where the residual allows it
    HF-online     `federated_bound`, from the recorded lengths of vectors and moves
"""

import statistics
import warnings
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.certified.federated import Setup, delete_by_addition, retrain_without, train_federation
from benchmarks.data import accuracy_percent, sites_and_test
from benchmarks.tables import Row, grouped, provenance, table, write
from unlearning.certified.linear_head import feature_norm
from unlearning.certified.newton_step import InfluenceSettings, newton_step
from unlearning.certified.noise import add_noise, analytic_sigma
from unlearning.certified.sensitivity import (
    Inexactness,
    logistic_constants,
    minimiser_norm,
    newton_step_bound,
)
from unlearning.curvature.gradients import gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.errors import NumericalError
from unlearning.methods.hf_online_vectors import CarryVectors
from unlearning.parameters import Vector
from unlearning.solvers.conjugate_gradient import conjugate_gradient
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Examples, Task, join
from unlearning.training import TrainingSettings, initial_parameters

CLIENTS = 50
LEAVING = (1, 2, 5)
WEIGHTS = (0.001, 0.01, 0.1)
"""Of the L2 term, for the Newton step."""
FEDERATIONS = ((5, 0.1, 0.1), (20, 0.1, 0.1), (20, 0.1, 0.5))
"""Rounds, learning rate and weight of the L2 term, for HF-online."""
EPSILONS, DELTA = (1.0, 8.0), 1e-5
DRAWS = 5
"""The accuracy with noise is the mean of so many."""
NEWTON = {
    "l2": "L2",
    "deleted": "deleted",
    "before": "before %",
    "unlearned": "unlearned %",
    "retrained": "retrained %",
    "distance": "distance",
    "error": "error",
    "worst": "worst case",
    "bound": "residual bound",
    "ratio": "bound / error",
    "sigma-1": "σ, ε = 1",
    "noisy-1": "noise % (ε = 1)",
    "sigma-8": "σ, ε = 8",
    "noisy-8": "noise % (ε = 8)",
}
ONLINE = {"rounds": "rounds", "rate": "η"} | {
    key: "bound" if key == "bound" else title for key, title in NEWTON.items() if key != "worst"
}

KEYS = ("rounds", "rate", "l2", "deleted")
"""The columns that say which case a row is of; the others are figures."""


def main(
    output: Annotated[Path, typer.Option(help="Where the table goes, without suffix.")],
    data_dir: Annotated[
        str, typer.Option(envvar="FLOWER_UNLEARNING_DATA", help="Where the features are.")
    ] = "",
    seeds: int = 1,
    max_examples: int = 500,
) -> None:
    """Measure accuracies, distances, bounds and noise."""
    newton: list[Row] = []
    online: list[Row] = []
    for seed in range(seeds):
        settings = TaskSettings(
            dataset="cifar10-features",
            num_clients=CLIENTS,
            max_examples=max_examples,
            dtype="float64",
            data_dir=data_dir,
            seed=seed,
        )
        data, test = sites_and_test(settings)
        task = make_task(settings)
        for l2 in WEIGHTS:
            newton += newton_rows(task, data, test, l2)
        for rounds, rate, l2 in FEDERATIONS:
            training = TrainingSettings(learning_rate=rate, batch_size=100, weight_decay=l2, seed=seed)
            setup = Setup(task=task, data=data, training=training, rounds=rounds)
            online += online_rows(setup, test)
    found = {"newton": _medians(newton, NEWTON), "online": _medians(online, ONLINE)}
    lines = [
        "# Certified deletions from a linear head on CIFAR-10 features",
        "",
        f"{max_examples} pictures, {CLIENTS} clients, IID, float64, δ = {DELTA:g}; medians of {seeds} seed(s). Noise: "
        f"test accuracy with noise of σ, mean of {DRAWS} draws. Distance, error: to exact retraining, before and after "
        f"the deletion. Bounds: see `benchmarks/certified/heads.py`. {provenance()}.",
        "",
        "## One Newton step from the minimum",
        "",
        *_table(found["newton"], NEWTON),
        "",
        "## HF-online, one local epoch in batches of 100",
        "",
        *_table(found["online"], ONLINE),
    ]
    write(output, lines, {"seeds": seeds, **found})


def newton_rows(task: Task, data: Mapping[str, Examples], test: Examples, l2: float) -> list[Row]:
    """Return what one Newton step leaves of 1 % of the samples, and of each number of clients."""
    everything = reduce(join, data.values())
    radius = max(feature_norm(task, examples) for examples in data.values())
    constants = logistic_constants(
        feature_norm=radius,
        weight_norm=minimiser_norm(l2=l2, num_classes=task.num_classes),
        l2=l2,
        features_from="training data",
    )
    model = minimum(task, everything, l2, initial_parameters(task, 0))
    rows = []
    for deleted, gone in _deletions(data).items():
        retained, forgotten = everything.select(~gone), everything.select(gone)
        settings = InfluenceSettings(l2=l2, damping=0.0, tolerance=1e-12, max_iterations=1000)
        step = newton_step(task, model, retained, forgotten, settings)
        inexactness = Inexactness(
            gradient_norm=_length(gradient(task, model, everything, l2=l2)),
            residual_norm=step.solution.residuals[-1],
        )
        worst = newton_step_bound(
            constants, num_examples=len(everything), num_deleted=len(forgotten), inexactness=inexactness
        )
        bound = _length(gradient(task, step.parameters, retained, l2=l2)) / l2
        models = {
            "before": model,
            "unlearned": step.parameters,
            "retrained": minimum(task, retained, l2, step.parameters),
        }
        rows.append(
            {"l2": l2, "deleted": deleted, "worst": worst.value, **_figures(task, models, bound, test)}
        )
    return rows


def online_rows(setup: Setup, test: Examples) -> list[Row]:
    """Return what adding the vectors leaves of each number of clients."""
    radius = max(feature_norm(setup.task, examples) for examples in setup.data.values())
    everybody = [str(number) for number in range(max(LEAVING))]
    options = CarryVectors(clients=frozenset(everybody), feature_norm=radius)
    model, store = train_federation(setup, options)
    rows = []
    for count in LEAVING:
        leaving = frozenset(everybody[:count])
        unlearned, sensitivity = delete_by_addition(setup, options, store, model, leaving)
        models = {"before": model, "unlearned": unlearned, "retrained": retrain_without(setup, leaving)}
        training = setup.training
        rows.append(
            {
                "rounds": setup.rounds,
                "rate": training.learning_rate,
                "l2": training.weight_decay,
                "deleted": f"{count} client(s)",
                **_figures(setup.task, models, sensitivity.value, test),
            }
        )
    return rows


def minimum(task: Task, examples: Examples, l2: float, start: Vector) -> Vector:
    """Return the minimiser (d,) of the mean loss with its L2 term, by Newton's method, to rounding.

    Raises:
        NumericalError: it does not get there.
    """
    model = start
    for _ in range(40):
        slope = gradient(task, model, examples, l2=l2)
        if _length(slope) < 1e-10:
            return model
        product = CurvatureProduct(task, model, examples, kind=CurvatureKind.HESSIAN, l2=l2)
        solution = conjugate_gradient(product, -slope, max_iterations=500, tolerance=1e-3)
        model = model + solution.value
    raise NumericalError(f"The minimum with an L2 term of {l2} was not reached in 40 Newton steps.")


def _figures(task: Task, models: Mapping[str, Vector], bound: float, test: Examples) -> Row:
    exact, unlearned = models["retrained"], models["unlearned"]
    error = _length(unlearned - exact)
    row: Row = {name: accuracy_percent(task, model, test) for name, model in models.items()}
    row |= {
        "distance": _length(models["before"] - exact),
        "error": error,
        "bound": bound,
        "ratio": bound / error,
    }
    for epsilon in EPSILONS:
        sigma = analytic_sigma(epsilon=epsilon, delta=DELTA, sensitivity=bound)
        noisy = [add_noise(unlearned, sigma, np.random.default_rng(draw)) for draw in range(DRAWS)]
        row[f"sigma-{epsilon:g}"] = sigma
        row[f"noisy-{epsilon:g}"] = float(np.mean([accuracy_percent(task, one, test) for one in noisy]))
    return row


def _deletions(data: Mapping[str, Examples]) -> dict[str, np.ndarray]:
    """Return which of all examples each deletion forgets, by its name: 1 % of the samples, or the first clients."""
    lengths = [len(examples) for examples in data.values()]
    count = sum(lengths)
    some = np.zeros(count, dtype=np.bool_)
    some[np.random.default_rng(0).permutation(count)[: count // 100]] = True
    firsts = {f"{number} client(s)": np.arange(count) < sum(lengths[:number]) for number in LEAVING}
    return {"1 % of samples": some, **firsts}


def _length(vector: Vector) -> float:
    return float(np.linalg.norm(vector))


def _medians(rows: list[Row], columns: Mapping[str, str]) -> list[Row]:
    """Return one row of each case: the medians over seeds of its figures."""
    keys = [key for key in columns if key in KEYS]
    return [
        dict(zip(keys, case, strict=True))
        | {key: statistics.median(row[key] for row in mine) for key in columns if key not in keys}
        for case, mine in grouped(rows, keys).items()
    ]


def _table(rows: list[Row], columns: Mapping[str, str]) -> list[str]:
    keys = [key for key in columns if key in KEYS]
    shown = [key for key in columns if key not in keys]
    cells = ([*(row[key] for key in keys), *(f"{row[key]:.3g}" for key in shown)] for row in rows)
    return table([columns[key] for key in (*keys, *shown)], cells)


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    typer.run(main)
