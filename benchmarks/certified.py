"""HF-online, Newton step and jackknife beside exact retraining, centralised.

    python -m benchmarks.certified --output docs/results/certified-digits
    python -m benchmarks.certified --dataset mnist --data-dir DATA --output docs/results/certified-mnist

L2-regularised logistic regression trained by SGD in fixed batches, with a vector for every single
sample. The deleted sets of one seed are nested. Every method is compared with exact retraining from the same
start in the same batches without the deleted samples, with the weighting that it is the derivative of.
The configuration is that of the paper's convex experiment (15 epochs, η = 0.05, batches of 32, L2 0.5, damping 0.01).
"""

import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import run as run_command
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track

from unlearning.certified import (
    InfluenceSettings,
    OnlineSettings,
    PrecomputedJackknife,
    Weighting,
    fixed_batches,
    forgotten_by_addition,
    infinitesimal_jackknife,
    newton_step,
    retrained_on_batches,
    train_online,
)
from unlearning.parameters import Vector
from unlearning.solvers.direct import MAX_DIMENSION
from unlearning.tasks import TaskSettings, load_server_test, load_site, make_task
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, evaluate, initial_parameters
from unlearning.verification.equivalence import loss_change_correlation

RATES = (0.01, 0.05, 0.1, 0.2, 0.3)
ONLINE = {
    "HF-online, renormalised": OnlineSettings(weighting=Weighting.RENORMALISED),
    "HF-online, fixed": OnlineSettings(weighting=Weighting.FIXED),
    "HF-online, as published code": OnlineSettings(weighting=Weighting.FIXED, as_published_code=True),
}
Row = dict[str, Any]
console = Console()


def main(
    output: Annotated[Path, typer.Option(help="Where the table goes, without suffix.")],
    dataset: str = "digits",
    data_dir: str = "",
    max_examples: int = 1000,
    seeds: int = 3,
    l2: float = 0.5,
    epochs: int = 15,
    learning_rate: float = 0.05,
    batch_size: int = 32,
    damping: float = 0.01,
) -> None:
    """Distance, correlation, seconds and bytes against exact retraining."""
    settings = TaskSettings(
        dataset=dataset, data_dir=data_dir, num_clients=1, max_examples=max_examples, dtype="float64"
    )
    chosen = {
        "dataset": dataset,
        "seeds": list(range(seeds)),
        "l2": l2,
        "epochs": epochs,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "damping": damping,
    }
    rows: list[Row] = []
    for seed in track(range(seeds), description="seeds"):
        examples = load_site(replace(settings, seed=seed), 0).train
        training = TrainingSettings(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=l2,
            seed=seed,
        )
        rows += seed_rows(make_task(settings), examples, load_server_test(settings), training, damping)
    names = list(dict.fromkeys(row["method"] for row in rows))
    lines = [
        f"# Certified unlearning on a convex problem: {dataset}",
        "",
        f"Multinomial logistic regression, {rows[0]['num_examples']} examples, {epochs} epochs, η = {learning_rate}, "
        f"batches of {batch_size}, L2 {l2}, damping {damping}, float64; medians of seeds 0 to {seeds - 1}. "
        f"{provenance()}.",
        "",
        "Gap: distance to exact retraining in the same batches over the original's distance (1 = nothing gained). "
        "Correlations: of the deleted samples' loss changes with retraining's. Seconds: of the deletion; before "
        "it, what had to be computed beforehand. HF-online keeps a vector for every sample.",
    ]
    for rate in RATES:
        found = [row for row in rows if row["rate"] == rate]
        lines += [
            "",
            f"## {rate:.0%} deleted ({found[0]['num_deleted']} samples)",
            "",
            "| | distance | gap | Pearson | Spearman | test acc. % | seconds | seconds before | bytes kept |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        keys = (
            "distance",
            "gap",
            "pearson",
            "spearman",
            "test_accuracy",
            "seconds",
            "seconds_before",
            "bytes",
        )
        for name in names:
            mine = [row for row in found if row["method"] == name]
            lines.append(f"| {name} | " + " | ".join(median(mine, key) for key in keys) + " |")
    write(output, lines, {"settings": chosen, "rows": rows})


def seed_rows(
    task: Task, examples: Examples, test: Examples | None, training: TrainingSettings, damping: float
) -> list[Row]:
    """Every method at every rate for one seed."""
    start, l2 = initial_parameters(task, training.seed), training.weight_decay
    plan, n = fixed_batches(len(examples), training), len(examples)
    order = np.random.default_rng(training.seed).permutation(n)
    units = {str(index): np.array([index]) for index in range(n)}
    online, before = {}, {}
    for name, settings in ONLINE.items():
        carrying = replace(settings, l2=l2)
        before[name], online[name] = timed(
            partial(train_online, task, start, examples, plan, units, carrying)
        )
    original = next(iter(online.values())).parameters
    influence = InfluenceSettings(l2=l2, damping=damping)
    jackknife = None
    if original.size <= MAX_DIMENSION:
        before["IJ"], jackknife = timed(partial(PrecomputedJackknife, task, original, examples, influence))
    rows: list[Row] = []
    for rate in RATES:
        gone = order[: max(2, round(rate * n))]
        forgotten = examples.select(gone)
        retained = examples.select(np.setdiff1d(np.arange(n), gone))
        truths: dict[Weighting, tuple[float, Vector]] = {}
        for weighting in Weighting:
            reference = OnlineSettings(l2=l2, weighting=weighting)
            retrain = partial(retrained_on_batches, task, start, examples, plan, gone, reference)
            truths[weighting] = timed(retrain)
        removals: dict[str, tuple[Weighting, float, Vector, int]] = {}
        for name, settings in ONLINE.items():
            w, vectors = online[name].parameters, online[name].vectors
            add = partial(forgotten_by_addition, w, vectors, [str(index) for index in gone])
            removals[name] = (settings.weighting, *timed(add), vectors.vectors.nbytes)
        newton = partial(newton_step, task, original, retained, forgotten, influence)
        seconds, step = timed(newton)
        removals["NS"] = (Weighting.RENORMALISED, seconds, step.parameters, 0)
        if jackknife is not None:
            seconds, theta = timed(partial(jackknife.step, forgotten))
            removals["IJ"] = (Weighting.RENORMALISED, seconds, theta, jackknife.size_bytes)
        else:
            solve = partial(infinitesimal_jackknife, task, original, examples, forgotten, influence)
            seconds, step = timed(solve)
            removals["IJ"] = (Weighting.RENORMALISED, seconds, step.parameters, 0)
        for weighting, (seconds, theta) in truths.items():
            removals[f"Retrain, {weighting}"] = (weighting, seconds, theta, 0)
        common = {"seed": training.seed, "rate": rate, "num_deleted": len(gone), "num_examples": n}
        for name, (weighting, seconds, theta, size) in removals.items():
            found = measured(task, original, theta, truths[weighting][1], forgotten, test)
            spent = {"seconds": seconds, "seconds_before": before.get(name), "bytes": size}
            rows.append({**common, "method": name, **spent, **found})
    return rows


def measured(
    task: Task, original: Vector, theta: Vector, truth: Vector, forgotten: Examples, test: Examples | None
) -> Row:
    """Distances and correlations of one unlearned model."""
    distance = float(np.linalg.norm(theta - truth))
    before, ours, true = (evaluate(task, model, forgotten).loss for model in (original, theta, truth))
    correlation = loss_change_correlation(before, ours, true)
    return {
        "distance": distance,
        "gap": distance / float(np.linalg.norm(original - truth)),
        "pearson": correlation.pearson,
        "spearman": correlation.spearman,
        "test_accuracy": None if test is None else 100 * float(evaluate(task, theta, test).score.mean()),
    }


def timed(way: Callable[[], Any]) -> tuple[float, Any]:
    """Wall-clock seconds, and what came of it."""
    started = time.perf_counter()
    result = way()
    return time.perf_counter() - started, result


def median(rows: list[Row], key: str) -> str:
    """The median over seeds, to three digits."""
    values = [row[key] for row in rows if row[key] is not None]
    return f"{statistics.median(values):.3g}" if values else "–"


def provenance() -> str:
    """Machine, versions and commit."""
    commit = run_command(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return f"{platform.machine()}, CPU, {torch.get_num_threads()} thread(s), torch {torch.__version__}, commit {commit}"


def write(output: Path, lines: list[str], found: Mapping[str, Any]) -> None:
    """The table as Markdown and all figures as JSON."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    content = json.dumps({"provenance": provenance(), **found}, indent=1)
    output.with_suffix(".json").write_text(content + "\n", encoding="utf-8")
    console.print("\n".join(lines))


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    typer.run(main)
