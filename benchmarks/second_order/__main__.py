"""Second-order methods beside exact Newton and exact retraining on a convex problem.

    python -m benchmarks.second_order --output docs/results/second-order-digits --seeds 3

L2-regularised multinomial logistic regression on digits, 10 clients, Dirichlet 0.5, float64, trained to a gradient
norm below 1e-10, for the deletion of a client, of a fifth of a client's samples and of a class. Gap: distance to the
retrained optimum over the original's distance (1 = nothing gained). KL: of the retrained model's predictions on test
data to the method's. Exchanges: messages each way to a client that takes part.

Beside each form of Newton-CG stands L-BFGS on the retained objective, started at the same model and stopped at the
first point with the same gradient norm. An evaluation of it is an exchange too: the model goes out, the loss and
the gradient come back from everyone who retains something. Bytes are the vectors' of all clients over a session,
where an exchange of either carries one out and one back (by messages Newton-CG's carry the model as well).
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.progress import track
from scipy.optimize import minimize

from benchmarks.bench.equivalence import kl_divergence
from benchmarks.second_order.convex import (
    ConvexFederation,
    convex_federation,
    exact_newton,
    retrain,
    run_method,
)
from benchmarks.tables import Row, median, table, write
from benchmarks.timing import time_call
from unlearning.curvature.gradients import gradient
from unlearning.evaluation import evaluate, predict
from unlearning.local import retained
from unlearning.methods.registry import METHODS
from unlearning.parameters import Vector
from unlearning.requests import Granularity, Target
from unlearning.tasks import Examples

Way = Callable[[ConvexFederation, Target], tuple[Vector, int]]


def _method(name: str, **parameters: Any) -> Way:
    def way(federation: ConvexFederation, target: Target) -> tuple[Vector, int]:
        state = run_method(federation, METHODS[name], target, **parameters)
        return state.parameters, state.exchanges

    return way


WAYS: dict[str, Way] = {
    "Original": lambda federation, _: (federation.original, 0),
    "HF-KCU as published": _method("hf-kcu", lanczos_steps=0),
    "HF-KCU, corrected (requester's Hessian)": _method(
        "hf-kcu-influence", curvature="hessian", damping=0.0, iterations=200, lanczos_steps=0
    ),
    "Federated Newton-CG": _method("newton-cg", curvature="hessian"),
    "Federated Newton-CG, to a residual of 3 %": _method("newton-cg", curvature="hessian", tolerance=0.03),
    "Federated Newton-CG, not preconditioned": _method(
        "newton-cg", curvature="hessian", precondition=False, iterations=200
    ),
    "Federated Newton-CG, two steps": _method("newton-cg", curvature="hessian", newton_steps=2),
    "Exact Newton (dense)": lambda federation, target: (exact_newton(federation, target), 0),
    "Retrain": lambda federation, target: (retrain(federation, target), 0),
}


METHOD_COLUMNS = {
    "gap": "gap",
    "cosine": "cosine to the true move",
    "kl": "KL on test data",
    "forget_loss": "loss on the forgotten data",
    "exchanges": "exchanges",
    "seconds": "seconds",
}
RACE_COLUMNS = {
    "gradient_norm": "gradient norm reached",
    "gap": "gap",
    "exchanges": "exchanges",
    "bytes": "bytes",
    "seconds": "seconds",
}
FIRST_ORDER = "L-BFGS to the same gradient norm as: "
RACED = tuple(name for name in WAYS if name.startswith("Federated Newton-CG"))


class _Reached(Exception):
    """L-BFGS has come to the gradient norm; scipy stops by nothing else than an exception."""


class RetainedObjective:
    """F_R(θ) as a server sees it: each evaluation is one exchange with every client that retains something."""

    def __init__(self, federation: ConvexFederation, target: Target, *, stop_at: float = 0.0) -> None:
        self.parts: list[Examples] = list(retained(federation.clients, [target]).values())
        self.num_evaluations = 0
        self.gradient_norm = float("inf")
        self.best: Vector = federation.original
        self._federation, self._stop_at = federation, stop_at

    def __call__(self, theta: Vector) -> tuple[float, NDArray[np.float64]]:
        """Return the value and the gradient at θ (d,).

        Raises:
            _Reached: the gradient's norm is at most `stop_at`.
        """
        task, l2 = self._federation.task, self._federation.l2
        self.num_evaluations += 1
        total = sum(len(part) for part in self.parts)
        value, slope = l2 / 2 * float(theta @ theta), l2 * theta.astype(np.float64)
        for part in self.parts:
            value += len(part) / total * float(evaluate(task, theta, part).loss.mean())
            slope += len(part) / total * gradient(task, theta, part)
        self.best, self.gradient_norm = theta.copy(), float(np.linalg.norm(slope))
        if self.gradient_norm <= self._stop_at:
            raise _Reached
        return value, slope


def lbfgs_to(federation: ConvexFederation, target: Target, gradient_norm: float) -> RetainedObjective:
    """Return L-BFGS from the original to a gradient norm of the retained objective."""
    objective = RetainedObjective(federation, target, stop_at=gradient_norm)
    options = {"maxiter": 5000, "maxfun": 5000, "gtol": 0.0, "ftol": 0.0}
    try:
        minimize(objective, federation.original, jac=True, method="L-BFGS-B", options=options)
    except _Reached:
        return objective
    raise RuntimeError(f"L-BFGS did not reach the gradient norm {gradient_norm:.3g}.")


def race(
    federation: ConvexFederation, target: Target, theta: Vector, row: Row, truth: Vector
) -> tuple[Row, Row]:
    """Return what a form of Newton-CG took to its gradient norm, by `row`, and what L-BFGS took to the
    same.
    """
    objective = RetainedObjective(federation, target)
    objective(theta)
    lbfgs_seconds, reached = time_call(
        lambda: lbfgs_to(federation, target, objective.gradient_norm), time.process_time
    )
    start = float(np.linalg.norm(federation.original - truth))
    vectors = 2 * theta.nbytes * len(objective.parts)
    return (
        {
            "gradient_norm": objective.gradient_norm,
            "gap": float(np.linalg.norm(theta - truth)) / start,
            "exchanges": row["exchanges"],
            "bytes": row["exchanges"] * vectors,
            "seconds": row["seconds"],
        },
        {
            "gradient_norm": reached.gradient_norm,
            "gap": float(np.linalg.norm(reached.best - truth)) / start,
            "exchanges": reached.num_evaluations,
            "bytes": reached.num_evaluations * (vectors + 8 * len(objective.parts)),
            "seconds": lbfgs_seconds,
        },
    )


def targets(federation: ConvexFederation) -> dict[str, Target]:
    """Return a client, a fifth of a client's samples, a class."""
    ids = sorted(federation.clients["0"].ids.tolist())
    return {
        "client 0": Target(Granularity.CLIENT, "0"),
        "20 % of client 0": Target(Granularity.SAMPLE, "0", frozenset(ids[: max(1, len(ids) // 5)])),
        "class 3": Target(Granularity.CLASS, class_label=3),
    }


def measure_way(federation: ConvexFederation, target: Target, way: Way, truth: Vector) -> tuple[Vector, Row]:
    """Return the model that a way leads to, and its figures."""
    seconds, (theta, exchanges) = time_call(lambda: way(federation, target), time.process_time)
    forgotten, _ = federation.split(target)
    start = float(np.linalg.norm(federation.original - truth))
    move, true = theta - federation.original, truth - federation.original
    size = float(np.linalg.norm(move))
    outputs = [predict(federation.task, model, federation.test) for model in (truth, theta)]
    return theta, {
        "gap": float(np.linalg.norm(theta - truth)) / start,
        "cosine": float(move @ true) / (size * start) if size else None,
        "kl": kl_divergence(outputs[0], outputs[1]),
        "forget_loss": float(evaluate(federation.task, theta, forgotten).loss.mean()),
        "exchanges": exchanges,
        "seconds": seconds,
    }


def main(
    output: Annotated[Path, typer.Option(help="Where the table goes, without suffix.")],
    seeds: int = 5,
    l2: float = 0.01,
    clients: int = 10,
    alpha: float = 0.5,
    max_examples: int = 0,
) -> None:
    """Print and write the table: medians over seeds (other partitions)."""
    rows: dict[str, dict[str, list[Row]]] = {}
    races: dict[str, dict[str, list[Row]]] = {}
    for seed in track(range(seeds), description="partitions"):
        federation = convex_federation(
            num_clients=clients, alpha=alpha, seed=seed, l2=l2, max_examples=max_examples
        )
        for kind, target in targets(federation).items():
            truth = retrain(federation, target)
            for name, way in WAYS.items():
                theta, row = measure_way(federation, target, way, truth)
                rows.setdefault(kind, {}).setdefault(name, []).append(row)
                if name in RACED:
                    pair = race(federation, target, theta, row, truth)
                    for title, figures in zip((name, FIRST_ORDER + name), pair, strict=True):
                        races.setdefault(kind, {}).setdefault(title, []).append(figures)
    lines = [
        "# Second-order unlearning against exact retraining",
        "",
        f"Digits, multinomial logistic regression, μ = {l2}, {clients} clients, Dirichlet {alpha}; medians of {seeds} "
        f"partitions; torch {torch.__version__}, float64, {torch.get_num_threads()} thread(s); seconds are CPU time.",
    ]
    for kind, ways in rows.items():
        lines += [
            "",
            f"## Deletion of {kind}",
            "",
            *_table(ways, METHOD_COLUMNS),
            "",
            f"To the same gradient norm of the retained objective, deletion of {kind}:",
            "",
            *_table(races[kind], RACE_COLUMNS),
        ]
    write(output, lines, {"methods": rows, "beside L-BFGS": races})


def _table(groups: Mapping[str, list[Row]], columns: Mapping[str, str]) -> list[str]:
    """Return medians by name; `columns`: heading by key."""
    rows = [[name, *(median(found, key) for key in columns)] for name, found in groups.items()]
    return table(["", *columns.values()], rows)


if __name__ == "__main__":
    typer.run(main)
