"""The figures of one row: measured on the models, by the ledger, and against the retrained model."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench.backdoor import Trigger, attack_success_rate, triggered_test
from benchmarks.bench.cases import Backdoor
from benchmarks.bench.columns import Row
from benchmarks.bench.equivalence import (
    causal_faithfulness,
    kl_divergence,
    logit_mse,
    loss_change_correlation,
    parameter_gap,
    prediction_agreement,
)
from server.ledger import Ledger
from unlearning.buffers import without_buffers
from unlearning.errors import DataError
from unlearning.evaluation import evaluate, predict
from unlearning.methods.eligibility import FederationProfile
from unlearning.parameters import Vector
from unlearning.runtime.json_codec import to_plain
from unlearning.tasks.task import Examples, Task
from unlearning.verification import gaussian_poison
from unlearning.verification.figures import Measurement
from unlearning.verification.gaussian_poison import Planted

COMPARED_EXAMPLES = 2_000
"""On so many test examples the outputs of a method are compared with Retrain's."""


def scores(measurement: Measurement) -> Row:
    """Return utility and attacks of one model, as the federation measured them."""
    return {
        "test": measurement.score("test"),
        "retained": measurement.score("retained"),
        "forget": measurement.score("forgotten"),
        "metrics": dict(measurement.test.metrics) if measurement.test else {},
        "forget_loss": measurement.forgotten.loss if measurement.forgotten else None,
        "attacks": dict(measurement.attacks),
        "figures": figures_of(measurement),
    }


def figures_of(measurement: Measurement) -> Row:
    """Return every attack by name, with intervals."""
    return {name: to_plain(figure) for name, figure in measurement.figures.items()}


def costs_of_rounds(ledger: Ledger, federation: FederationProfile, *, after: int = 0) -> Row:
    """Return bytes and seconds as they were measured; operations are examples times those of one."""
    rounds = list(ledger.all_rounds(after=after))
    examples = sum(r.metrics["num_examples"] for r in rounds)
    return {
        "bytes": sum(r.metrics["bytes_sent"] + r.metrics["bytes_received"] for r in rounds),
        "seconds": sum(r.metrics["seconds"] for r in rounds),
        "flops": examples * federation.local_epochs * federation.flops_per_example,
        "peak_memory": peak_memory(r.metrics.get("peak_memory") for r in rounds),
    }


def costs_of_reports(reports: Sequence[Mapping[str, Any]]) -> Row:
    """Return the costs of unlearning and recovery; requests that were served together share their costs.

    Bytes and seconds were measured; floating-point operations are those of the closed formulas.
    """
    row: Row = {"bytes": 0, "seconds": 0.0, "flops": 0.0}
    seen: set[frozenset[str]] = set()
    phases: list[Mapping[str, Any]] = []
    for report in reports:
        together = frozenset({report["request"]["id"], *report["request"]["served_with"]})
        if together in seen:
            continue
        seen.add(together)
        phases += [report["unlearning"], report["recovery"]]
        row["flops"] += sum(formula["formula_flops"] or 0.0 for formula in report["formulas"])
    for phase in phases:
        row["bytes"] += (phase["bytes_sent"] or 0) + (phase["bytes_received"] or 0)
        row["seconds"] += phase["seconds"] or 0.0
    row["peak_memory"] = peak_memory(phase.get("peak_memory") for phase in phases)
    return row


def peak_memory(peaks: Iterable[Mapping[str, int | None] | None]) -> int | None:
    """Return the most memory of a client, in bytes: of the accelerator where there is one, else of its process.

    peaks: as rounds and reports have them (`unlearning.runtime.peak_memory`); None where none of them says.
    """
    known = [peak for peak in peaks if peak]
    device = [most for peak in known if (most := peak["client_device_bytes"])]
    process = [most for peak in known if (most := peak["client_bytes"])]
    return max(device or process, default=None)


def stored_bytes(directory: Path, method: str) -> Row:
    """Return what a trained federation keeps for a method beside the model, in bytes."""
    return {
        "server_bytes": _size(directory / "kept" / method),
        "client_bytes": sum(_size(path) for path in (directory / "clients").glob(f"*/kept/{method}")),
    }


def beside_retrain(
    task: Task,
    *,
    original: Vector,
    unlearned: Vector,
    retrained: Vector,
    test: Examples | None,
    forgotten: Examples,
) -> Row:
    """Return how far the unlearned model is from the retrained one; nothing for models of different length."""
    if retrained.size != unlearned.size:
        return {}  # an ensemble has another length
    weights = {
        name: without_buffers(task, model)
        for name, model in (("original", original), ("unlearned", unlearned), ("retrained", retrained))
    }
    row: Row = {
        "parameter_gap": parameter_gap(weights["retrained"], weights["unlearned"]),
        "moved": parameter_gap(weights["original"], weights["unlearned"]),
    }
    if test is not None:
        some = test.select(np.arange(min(len(test), COMPARED_EXAMPLES)))
        ours, theirs = predict(task, unlearned, some), predict(task, retrained, some)
        row |= {
            "kl": kl_divergence(theirs, ours),
            "logit_mse": logit_mse(theirs, ours),
            "agreement": prediction_agreement(theirs, ours),
        }
    losses = [evaluate(task, model, forgotten).loss for model in (original, unlearned, retrained)]
    try:
        found = loss_change_correlation(losses[0], losses[1], losses[2])
        row |= {"pearson": found.pearson, "spearman": found.spearman}
    except DataError:
        pass  # a model that did not change has no loss change to correlate
    return row


def faithfulness(original: Row, unlearned: Row, retrained: Row) -> Row:
    """Return causal faithfulness of the test scores; None where retraining hardly changes them."""
    if None in (original["test"], unlearned["test"], retrained["test"]):
        return {}
    found = causal_faithfulness(original["test"], unlearned["test"], retrained["test"])
    return {"causal_faithfulness": found.value}


def backdoor_success(task: Task, parameters: Vector, test: Examples | None, backdoor: Backdoor | None) -> Row:
    """Return how often the patch gets its label; nothing where no backdoor was planted."""
    if backdoor is None or test is None:
        return {}
    attacked = triggered_test(test, trigger_of(backdoor, test))
    answers = predict(task, parameters, attacked).argmax(axis=1)
    return {"backdoor": attack_success_rate(answers, attacked.targets.numpy(), backdoor.label)}


def noise_scores(task: Task, parameters: Vector, planted: Planted | None) -> Row:
    """Return what the noise that a client planted says of the model; nothing where none was planted."""
    if planted is None:
        return {}
    found = gaussian_poison.judge(gaussian_poison.scores(task, parameters, planted))
    return {"noise": found.mean, "noise_z": found.z, "noise_tpr": found.tpr}


def trigger_of(backdoor: Backdoor, test: Examples) -> Trigger:
    """Return the patch, as bright as the brightest pixel of the test set."""
    return Trigger(label=backdoor.label, value=float(test.inputs.max()), side=backdoor.side)


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("**/*.npz"))
