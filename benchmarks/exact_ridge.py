"""Exact ridge on features of CIFAR-10 pictures: how exact, how quick, and what its computed bound is worth.

    python -m benchmarks.exact_ridge --data-dir DATA --output docs/results/exact-ridge

Ten clients with equal parts of 10,000 pictures (472 features of a frozen EfficientNet-Lite0) forget a client, a tenth
of one client's pictures, or a class. *Moved*: by how much of its length the deletion moves the head. *Off*: the
distance to a head of the pictures that stay, by least squares on the inputs themselves, over the length; *to the bit*:
whether the model is the one of a federation that never had the data. *Bound*: the one in the report, over the length.
CPU seconds are of the deletion, at the client that is asked and at the server, and of training on all clients.
The last line is of sums in float32, which the method does not do.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.data import accuracy_percent, sites_and_test
from benchmarks.tables import Row, table, write
from benchmarks.timing import time_call
from unlearning.local import carry_out, problem_of, retained
from unlearning.methods.exact_ridge import ExactRidge, SendSums, layer_of
from unlearning.methods.method import PreparedStore
from unlearning.methods.preparation import FederatedRound
from unlearning.methods.ridge_statistics import Statistics, parameters_of, solve
from unlearning.parameters import Vector
from unlearning.requests import Granularity, Target
from unlearning.runtime.stores import MemoryStore
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings

METHOD = ExactRidge()
NUM_CLIENTS = 10
Data = Mapping[str, Examples]


def main(
    output: Annotated[Path, typer.Option(help="Page and figures, without the ending.")],
    data_dir: Annotated[str, typer.Option(help="Where cifar10-features lies.")] = "",
    max_examples: Annotated[int, typer.Option(help="Pictures, all clients together.")] = 10_000,
) -> None:
    """Measure and write the page."""
    settings = TaskSettings(
        dataset="cifar10-features", num_clients=NUM_CLIENTS, max_examples=max_examples, data_dir=data_dir
    )
    data, test = sites_and_test(settings)
    some = frozenset(data["0"].ids[: len(data["0"]) // 10].tolist())
    targets = {
        "a client": Target(Granularity.CLIENT, "0"),
        "a tenth of a client's pictures": Target(Granularity.SAMPLE, "0", some),
        "a class": Target(Granularity.CLASS, class_label=3),
    }
    rows: list[Row] = []
    for dtype in ("float64", "float32"):
        task = make_task(replace(settings, dtype=dtype))
        for l2 in (1.0, 100.0):
            for case, target in targets.items():
                rows.append(
                    {"case": case, "model": dtype, "λ": l2, **_measured(task, data, test, target, l2)}
                )
    task = make_task(replace(settings, dtype="float64"))
    single = _single_sums(task, data, targets["a client"])
    keys = ["case", "model", "λ", "test before %", "test after %", "moved %", "off", "to the bit", "bound"]
    keys += ["CPU s, deletion", "CPU s, training"]
    lines = [
        "# Exact ridge",
        "",
        *(__doc__ or "").split("\n")[4:],
        *table(keys, ([_cell(row[k]) for k in keys] for row in rows)),
    ]
    lines += ["", f"With sums in float32, a client, λ = 1: off by {single:.2g} of the length."]
    lines += [
        "",
        f"Sums of a client: {rows[0]['bytes']:,} bytes a round; the model in float32 {4 * rows[0]['size']:,}.",
    ]
    write(output, lines, {"rows": rows, "off with sums in float32": single})


def _measured(task: Task, data: Data, test: Examples, target: Target, l2: float) -> Row:
    """Train, forget and compare, for one deletion."""
    trained_s, (before, kept) = time_call(lambda: _trained(task, data, l2), time.process_time)
    problem = replace(problem_of(METHOD, task, [target], data, TrainingSettings()), kept=kept, round=3)
    seconds, state = time_call(lambda: carry_out(METHOD, problem, before, data), time.process_time)
    left = retained(data, [target])
    retrained, _ = _trained(task, left, l2)
    exact = _least_squares(left, l2)
    length = float(np.linalg.norm(exact))
    entry = kept.store.load("1", 1)
    return {
        "test before %": accuracy_percent(task, before, test),
        "test after %": accuracy_percent(task, state.parameters, test),
        "moved %": 100 * float(np.linalg.norm(state.parameters - before.astype(np.float64))) / length,
        "off": float(np.linalg.norm(state.parameters - exact)) / length,
        "to the bit": bool(np.array_equal(state.parameters, retrained)),
        "bound": float(state.findings["bound on ‖θ − θ*‖"]) / length,
        "CPU s, deletion": seconds,
        "CPU s, training": trained_s,
        "bytes": sum(array.nbytes for array in entry.values()),
        "size": before.size,
    }


def _trained(task: Task, data: Data, l2: float) -> tuple[Vector, PreparedStore]:
    """Return the model after two rounds, and what the server keeps of them."""
    layer, options, store = layer_of(task), SendSums(l2=l2), MemoryStore()
    start = np.zeros(layer.weight.numel() + layer.out_features, dtype=str(task.dtype).removeprefix("torch."))
    sums = {client: Statistics.of(examples, layer) for client, examples in data.items()}
    done = FederatedRound(
        number=1,
        before=start,
        after=start,
        models={client: (len(examples), start) for client, examples in data.items()},
        arrays={client: one.to_arrays() for client, one in sums.items()},
    )
    options.keep(done, store)
    head = solve([sums[client] for client in sorted(sums)], l2)
    kept = PreparedStore(preparation=options, store=store, next_store=MemoryStore())
    return parameters_of(head.matrix, layer, start), kept


def _least_squares(data: Data, l2: float) -> Vector:
    """Return weight and bias by least squares on the inputs, with √λ times the identity below: no sums of products."""
    inputs = torch.cat([one.inputs for one in data.values()]).double().flatten(1).numpy()
    labels = torch.cat([one.targets for one in data.values()]).numpy()
    rows = np.column_stack([inputs, np.ones(len(inputs))])
    size, classes = rows.shape[1], int(labels.max()) + 1
    below = np.sqrt(l2) * np.eye(size)
    right = np.vstack([np.eye(classes)[labels], np.zeros((size, classes))])
    head = np.linalg.lstsq(np.vstack([rows, below]), right, rcond=None)[0]
    return np.concatenate([head[:-1].T.ravel(), head[-1]])


def _single_sums(task: Task, data: Data, target: Target) -> float:
    """Return how far a head of sums in float32 is off, over its length."""
    left, layer = retained(data, [target]), layer_of(task)
    parts = []
    for one in left.values():
        whole = Statistics.of(one, layer)
        inputs = np.column_stack([one.inputs.flatten(1).numpy(), np.ones(len(one))]).astype(np.float32)
        labels = np.eye(layer.out_features, dtype=np.float32)[one.targets.numpy()]
        gram, moments = inputs.T @ inputs, inputs.T @ labels
        parts.append(replace(whole, gram=gram.astype(np.float64), moments=moments.astype(np.float64)))
    exact = _least_squares(left, 1.0)
    found = parameters_of(solve(parts, 1.0).matrix, layer, exact)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def _cell(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3g}"
    return str(value)


if __name__ == "__main__":
    typer.run(main)
