"""Evaluation and prediction: a model's measures and outputs on examples, the same for every task, client and method."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from unlearning.errors import DataError, FlowerUnlearningError
from unlearning.parameters import Vector
from unlearning.runtime.devices import computing_device, drawing, inputs_for, targets_for
from unlearning.tasks.batches import InOrder
from unlearning.tasks.inputs import each, outputs_of, versions
from unlearning.tasks.task import Examples, PerExample, Task
from unlearning.training import model_with

EVALUATION_BATCH = 128
"""On a processor the activations of larger batches leave the cache: 512 take 1.1 to 1.9 times as long."""


def evaluate(
    task: Task, parameters: Vector, examples: Examples, batch_size: int = EVALUATION_BATCH
) -> PerExample:
    """Return the model's measures on every example, in order, without augmentation and in eval mode.

    In double precision from the model's outputs on: in single precision every loss below 1e-7 is 0 and every confidence
    above 1 − 6e-8 is 1, and the examples that a model knows best cannot be told apart. A model that draws random
    numbers in eval mode, too, draws the same ones each time, so that two models can be compared.

    Raises:
        DataError: the model or its measures do not take such examples. UpdateRefused: `parameters` is not the model's.
    """
    with _taking(task):
        return _per_example(
            task.per_example(outputs.double(), targets)
            for outputs, targets in _outputs(task, parameters, examples, batch_size)
        )


def predict(task: Task, parameters: Vector, examples: Examples, batch_size: int = EVALUATION_BATCH) -> Vector:
    """Return the model's outputs on every example, in order: shape (n, classes, ...), float64, in eval mode."""
    with _taking(task):
        parts = [outputs.double().cpu() for outputs, _ in _outputs(task, parameters, examples, batch_size)]
    return torch.cat(parts).numpy() if parts else np.zeros(0)


def evaluate_and_predict(
    task: Task,
    parameters: Vector,
    examples: Examples,
    chosen: NDArray[np.intp],
    batch_size: int = EVALUATION_BATCH,
) -> tuple[PerExample, Vector]:
    """Return what `evaluate` gives, and the outputs (k, classes, ...) of the examples at `chosen` (k,), in one pass."""
    measures, parts, start = [], [], 0
    wanted = np.sort(chosen)
    with drawing(0, computing_device()):
        for outputs, targets in _outputs(task, parameters, examples, batch_size):
            measures.append(task.per_example(outputs.double(), targets))
            first, last = np.searchsorted(wanted, [start, start + len(targets)])
            here = torch.from_numpy(wanted[first:last] - start).to(outputs.device)
            parts.append(outputs[here].double().cpu())
            start += len(targets)
    found = torch.cat(parts).numpy() if parts else np.zeros(0)
    return _per_example(measures), found[np.searchsorted(wanted, chosen)]


def _outputs(
    task: Task, parameters: Vector, examples: Examples, batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the model's outputs and the targets, batch by batch, on the device."""
    if batch_size < 1:
        raise DataError(f"A batch has 1 example or more, got {batch_size}.", code="batch-size")
    device = computing_device()
    model = model_with(task, parameters).to(device).eval()
    batches = examples.batches(InOrder(len(examples), batch_size), pin=device.type == "cuda")
    # To a model that does not convolve, the other order is two more copies of every batch.
    convolves = task.channels_last and any(parameter.ndim == 4 for parameter in model.parameters())
    # A batch may be a view of the stored examples. The first is copied, and shows whether the model writes on it.
    writes = True
    for number, (inputs, targets) in enumerate(batches):
        is_picture = convolves and isinstance(inputs, torch.Tensor) and inputs.ndim == 4
        layout = torch.channels_last if is_picture else torch.preserve_format
        if number == 0:
            model.to(memory_format=layout)
        given = each(lambda one: one.to(memory_format=layout), inputs_for(task, inputs, device))  # noqa: B023
        if writes:
            given = each(torch.clone, given)
        before = versions(given)
        with torch.inference_mode():
            outputs = outputs_of(model, given)
        writes = writes and before != versions(given)
        yield outputs, targets_for(task, targets, device)


@contextmanager
def _taking(task: Task) -> Iterator[None]:
    """Say of what a model or its measures raise whose it is, and let them draw the same random numbers each time."""
    try:
        with drawing(0, computing_device()):
            yield
    except (FlowerUnlearningError, torch.OutOfMemoryError):
        raise
    except Exception as exc:
        raise DataError(
            f"The model of {task.name}, or its measures, do not take such examples: {exc}",
            code="wrong-shape",
        ) from exc


def _per_example(batches: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> PerExample:
    """Return loss, score and confidence of all batches, one after another."""
    columns = [[values.double().cpu() for values in column] for column in zip(*batches, strict=True)]
    return PerExample(*(torch.cat(column).numpy() for column in columns or [[torch.zeros(0)]] * 3))
