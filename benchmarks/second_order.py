"""Second-order methods beside exact Newton and exact retraining on a convex problem.

    python -m benchmarks.second_order --output docs/results/second-order-digits

L2-regularised multinomial logistic regression on digits, 10 clients, Dirichlet 0.5, float64, trained to a gradient
norm below 1e-10, for the deletion of a client, of a fifth of a client's samples and of a class. Gap: distance to the
retrained optimum over the original's distance (1 = nothing gained). KL: of the retrained model's predictions on test
data to the method's. Exchanges: messages each way to a client that takes part.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track

from tests.convex import ConvexFederation, convex_federation, exact_newton, retrained, run_method
from unlearning.methods import METHODS
from unlearning.parameters import Vector
from unlearning.requests import Granularity, Target
from unlearning.training import evaluate, predict
from unlearning.verification.equivalence import kl_divergence

Row = dict[str, Any]
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
    "Federated Newton-CG, not preconditioned": _method(
        "newton-cg", curvature="hessian", precondition=False, iterations=200
    ),
    "Federated Newton-CG, two steps": _method("newton-cg", curvature="hessian", newton_steps=2),
    "Exact Newton (dense)": lambda federation, target: (exact_newton(federation, target), 0),
    "Retrain": lambda federation, target: (retrained(federation, target), 0),
}


def targets(federation: ConvexFederation) -> dict[str, Target]:
    """A client, a fifth of a client's samples, a class."""
    ids = sorted(federation.clients["0"].ids.tolist())
    return {
        "client 0": Target(Granularity.CLIENT, "0"),
        "20 % of client 0": Target(Granularity.SAMPLE, "0", frozenset(ids[: max(1, len(ids) // 5)])),
        "class 3": Target(Granularity.CLASS, class_label=3),
    }


def measured(federation: ConvexFederation, target: Target, way: Way, truth: Vector) -> Row:
    """One cell's figures."""
    started = time.perf_counter()
    theta, exchanges = way(federation, target)
    seconds = time.perf_counter() - started
    forgotten, _ = federation.split(target)
    start = float(np.linalg.norm(federation.original - truth))
    move, true = theta - federation.original, truth - federation.original
    size = float(np.linalg.norm(move))
    outputs = [predict(federation.task, model, federation.test) for model in (truth, theta)]
    return {
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
    for seed in track(range(seeds), description="partitions"):
        federation = convex_federation(
            num_clients=clients, alpha=alpha, seed=seed, l2=l2, max_examples=max_examples
        )
        for kind, target in targets(federation).items():
            truth = retrained(federation, target)
            for name, way in WAYS.items():
                rows.setdefault(kind, {}).setdefault(name, []).append(
                    measured(federation, target, way, truth)
                )
    lines = [
        "# Second-order unlearning against exact retraining",
        "",
        f"Digits, multinomial logistic regression, μ = {l2}, {clients} clients, Dirichlet {alpha}; medians of {seeds} "
        f"partitions; torch {torch.__version__}, float64, CPU, {torch.get_num_threads()} thread(s).",
    ]
    for kind, ways in rows.items():
        lines += [
            "",
            f"## Deletion of {kind}",
            "",
            "| | gap | cosine to the true move | KL on test data | loss on the forgotten data | exchanges | seconds |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, found in ways.items():
            cells = [
                _median(found, key) for key in ("gap", "cosine", "kl", "forget_loss", "exchanges", "seconds")
            ]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    output.with_suffix(".json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    Console().print("\n".join(lines))


def _median(rows: list[Row], key: str) -> str:
    values = [row[key] for row in rows if row[key] is not None]
    return f"{statistics.median(values):.3g}" if values else "–"


if __name__ == "__main__":
    typer.run(main)
