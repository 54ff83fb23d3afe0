"""What certified unlearning costs: deletions, carrying vectors, products in a block.

    python -m benchmarks.certified.costs --output docs/results/certified-costs --repeats 1

The time of a deletion by vector addition; of carrying tangents through local training, as a ratio to plain
training; and of one vector's product in a block, by three ways. Data and vectors are random, which does
not change the number of operations.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from benchmarks.certified.unit_vectors import UnitVectors, forgotten_by_addition
from benchmarks.data import NUM_CLASSES, random_examples, task_of
from benchmarks.tables import Row, provenance, table, write
from benchmarks.timing import median_seconds
from unlearning.certified.tangents import BlockProducts, TangentBlock, Weights, train_with_tangents
from unlearning.tasks.models import MODELS, Shape
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, initial_parameters, model_with, train

Tensors = Mapping[str, Tensor]


def main(
    output: Annotated[Path, typer.Option(help="Where the tables go, without suffix.")], repeats: int = 5
) -> None:
    """Measure deletion time, the cost of carrying, and ways to multiply a block."""
    found = {"deletion": deletion_times(), "carrying": carrying_times(repeats), "products": product_times()}
    times = [f"{way}_{clock}_ms" for way in ("fresh", "in_place") for clock in ("cpu", "wall")]
    deletion = (
        [row["model"], f"{row['dimension']:,}", row["units"], *(f"{row[time]:.3g}" for time in times)]
        for row in found["deletion"]
    )
    styles = {"ratio": ".2f", "per_vector": ".3f", "megabytes": ".3g"}
    carrying = (
        [row["model"], row["vectors"], *(f"{row[key]:{style}}" for key, style in styles.items())]
        for row in found["carrying"]
    )
    products = (
        [row["model"], row["vectors"], *(f"{row[key]:.2f}" for key in ("loop", "batched", "vmap"))]
        for row in found["products"]
    )
    clocks = [f"{way}, {clock}" for way in ("new array", "in place") for clock in ("CPU", "clock")]
    lines = [
        "# What certified unlearning costs",
        "",
        f"{provenance()}.",
        "",
        "## A deletion by vector addition",
        "",
        "Milliseconds, medians of 51, float32; CPU time and wall-clock time. "
        "*In place*: into the model's own memory.",
        "",
        *table(["model", "parameters", "units", *clocks], deletion),
        "",
        "## Carrying vectors through local training",
        "",
        "`train_with_tangents` over `train`, float32, CPU time; *a vector*: the added time of one, in plain trainings.",
        "",
        *table(["model", "vectors", "× plain training", "a vector", "MB of vectors"], carrying),
        "",
        "## A block of products with one kept graph",
        "",
        "CPU time of one vector's product, in gradients of the same batch of 32. The last needs no kept graph.",
        "",
        *table(["model", "vectors", "loop", "is_grads_batched", "vmap(jvp(grad))"], products),
    ]
    write(output, lines, found)


def deletion_times() -> list[Row]:
    """Return for the CNN and the ResNet, one unit and ten."""
    rows: list[Row] = []
    generator = np.random.default_rng(0)
    for model, shape in (("cnn", (1, 28, 28)), ("resnet18", (3, 32, 32))):
        theta = initial_parameters(task_named(model, shape), 0)
        names = tuple(map(str, range(10)))
        vectors = UnitVectors(names, generator.standard_normal((10, theta.size), dtype=np.float32))
        for count in (1, 10):
            chosen, own = names[:count], theta.copy()
            ways = {
                "fresh": partial(forgotten_by_addition, theta, vectors, chosen),
                "in_place": partial(forgotten_by_addition, own, vectors, chosen, out=own),
            }
            row = {"model": model, "dimension": theta.size, "units": count}
            for clock, read in (("cpu", time.process_time), ("wall", time.perf_counter)):
                times = median_seconds(ways, 51, read)
                row |= {f"{key}_{clock}_ms": 1000 * seconds for key, seconds in times.items()}
            rows.append(row)
    return rows


def carrying_times(repeats: int) -> list[Row]:
    """Return ratios of training with k tangents to plain training, one epoch of four batches."""
    rows: list[Row] = []
    cases: Mapping[str, tuple[Shape, int, tuple[int, ...]]] = {
        "logistic": ((1, 28, 28), 32, (1, 10, 100, 1000)),
        "cnn": ((1, 28, 28), 32, (1, 4, 16, 64)),
        "resnet18": ((3, 32, 32), 4, (1, 4)),
    }
    for model, (shape, batch_size, counts) in cases.items():
        task = task_named(model, shape)
        examples = random_examples(4 * batch_size, shape)
        settings = TrainingSettings(batch_size=batch_size, learning_rate=0.01)
        start = initial_parameters(task, 0)
        ways: dict[int, Callable[[], object]] = {0: partial(train, task, start, examples, settings)}
        for count in counts:
            tangents = np.random.default_rng(0).standard_normal((count, start.size), dtype=np.float32)
            ways[count] = partial(train_with_tangents, task, start, examples, settings, tangents)
        times = median_seconds(ways, repeats)
        for count in counts:
            ratio = times[count] / times[0]
            row = {"model": model, "vectors": count, "ratio": ratio, "per_vector": (ratio - 1) / count}
            rows.append({**row, "megabytes": count * start.nbytes / 1e6})
    return rows


def product_times() -> list[Row]:
    """Return the product of each of k vectors with one batch's Hessian, three ways."""
    rows: list[Row] = []
    for model, counts in (("logistic", (8, 64, 512)), ("lenet", (8, 64)), ("cnn", (8, 32))):
        shape = (1, 28, 28)
        task, examples = task_named(model, shape), random_examples(32, shape)
        network = model_with(task, initial_parameters(task, 0))
        weights = Weights(network)

        loss = partial(loss_at, network, task, examples)
        plain = dict(network.named_parameters())
        detached = {name: value.detach() for name, value in plain.items()}
        graph = weights.gradients(loss(plain), create_graph=True)
        for count in counts:
            tangents = torch.randn(count, weights.dimension)
            ways: dict[str, Callable[[], object]] = {"gradient": partial(gradient_at, weights, loss, plain)}
            for how in (BlockProducts.LOOP, BlockProducts.BATCHED):
                block = TangentBlock(weights, tangents.clone(), how)
                ways[how] = partial(block.advance, graph, learning_rate=0.0)
            parts = {name: torch.randn(count, *value.shape) for name, value in detached.items()}
            chunk = max(1, 16_000_000 // weights.dimension)
            ways["vmap"] = partial(vmap(partial(product_at, loss, detached), chunk_size=chunk), parts)
            times = median_seconds(ways, 3)
            shares = {way: times[way] / count / times["gradient"] for way in ("loop", "batched", "vmap")}
            rows.append({"model": model, "vectors": count, **shares})
    return rows


def loss_at(network: nn.Module, task: Task, examples: Examples, parameters: Tensors) -> Tensor:
    """Return the loss of a model with these parameters."""
    outputs = functional_call(network, dict(parameters), (examples.inputs,))
    return task.loss(outputs, examples.targets)


def gradient_at(weights: Weights, loss: Callable[[Tensors], Tensor], parameters: Tensors) -> object:
    """Return the gradients by the weights."""
    return weights.gradients(loss(parameters))


def product_at(loss: Callable[[Tensors], Tensor], parameters: Tensors, vector: Tensors) -> object:
    """Return the Hessian's product with a vector, forward over reverse."""
    return jvp(grad(loss), (parameters,), (vector,))[1]


def task_named(model: str, shape: Shape) -> Task:
    """Return a classifier; only its size matters."""
    return task_of(partial(MODELS[model].factory, shape, NUM_CLASSES))


if __name__ == "__main__":
    # torch's own modules announce changes when they are first imported
    warnings.simplefilter("ignore", FutureWarning)
    typer.run(main)
