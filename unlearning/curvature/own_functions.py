"""Functions of an app's own in a model or a loss (`torch.autograd.Function`), whose derivatives autograd cannot know.

A product with the curvature differentiates through their backward. Where that is marked once_differentiable, leaves
autograd (NumPy, a kernel, `detach`) or belongs to another function than the forward, autograd raises nothing: the
product lacks a part of the curvature. So such a model's derivatives are compared with central differences, in float64
on a few of its examples.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from unlearning.curvature.gradients import gradient
from unlearning.curvature.kinds import BATCH_CURVATURE, CurvatureKind, OutputCurvatureOfBatch
from unlearning.curvature.local_loss import LocalLoss, exact_kernels
from unlearning.errors import NumericalError
from unlearning.one_line import as_line
from unlearning.parameters import Vector
from unlearning.task_contract import few_of
from unlearning.tasks.task import Examples, Task

STEP = 1e-7
"""Of a central difference: a kink (ReLU) is rarely crossed, and rounding is 1e-9 of a gradient."""
TOLERANCE = 1e-3
"""Of the difference, as a share of the derivative."""
_DIRECTIONS = 3
"""In one of them at least no kink was crossed."""


def check_own_functions(
    loss: Tensor, task: Task, parameters: Vector, examples: Examples, kind: CurvatureKind
) -> None:
    """Refuse functions of the app's own that `loss` goes through, if a product of `kind` with them is wrong.

    parameters (d,), examples: where the two derivatives are compared.

    Raises:
        NumericalError: it is, or cannot be computed in float64.
    """
    names = sorted(set(_own_functions(loss)))
    if not names:
        return
    who = f"The model or loss of {task.name} has functions of its own ({', '.join(names)})"
    then = "or choose a method without curvature."
    exact, few = replace(task, dtype=torch.float64), few_of(examples)
    try:
        gaps = [_gap(exact, parameters.astype(np.float64), few, kind, seed) for seed in range(_DIRECTIONS)]
    except (RuntimeError, TypeError) as exc:
        raise NumericalError(
            f"{who}, and a product with the curvature could not be compared with finite differences, in float64: "
            f"{as_line(str(exc), 300)} Let them be differentiated twice and take float64, {then}",
            code="once-differentiable",
        ) from exc
    if not min(gaps) <= TOLERANCE:
        raise NumericalError(
            f"{who}, so a product with the curvature is wrong: it is {min(gaps):.1%} off finite differences. Write "
            f"their backward with operations of torch, without once_differentiable, NumPy or detach, {then}",
            code="once-differentiable",
        )


def _own_functions(loss: Tensor) -> Iterator[str]:
    """Yield the names of functions written in Python that the loss goes through."""
    seen: set[Node] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
        if isinstance(node, BackwardCFunction):
            yield type(node).__name__.removesuffix("Backward")


def _gap(task: Task, parameters: Vector, examples: Examples, kind: CurvatureKind, seed: int) -> float:
    """Return by how much the derivative along a random direction is off a central difference, as a share of it."""
    local = LocalLoss(task, parameters, examples)
    flat = np.random.default_rng(seed).standard_normal(local.dimension)
    parts = local.split(flat)
    with exact_kernels(local.device):
        graph = BATCH_CURVATURE[kind](local, slice(0, len(local)))
        product = graph.product(parts, keep=True)
        if isinstance(graph, OutputCurvatureOfBatch):
            found = graph.push_forward(parts)
            one, other = (_moved_outputs(local, graph, parts, step) for step in (STEP, -STEP))
        else:
            found, direction = local.zeros(), local.zeros()
            local.add(found, product)
            local.add(direction, parts)
            along = direction.cpu().numpy()
            one, other = (
                torch.from_numpy(gradient(task, parameters + step * along, examples)).to(local.device)
                for step in (STEP, -STEP)
            )
    expected = (one - other) / (2 * STEP)
    rounding = 1e-6 * float(one.norm())
    largest = max(float(expected.norm()), float(found.norm()), rounding, np.finfo(np.float64).tiny)
    return max(0.0, float((found - expected).norm()) - rounding) / largest


def _moved_outputs(
    local: LocalLoss, graph: OutputCurvatureOfBatch, parts: tuple[Tensor, ...], step: float
) -> Tensor:
    weights = {
        name: parameter.detach() + step * part
        for name, parameter, part in zip(local.names, local.trainable, parts, strict=True)
    }
    with torch.no_grad():
        return graph.outputs_of(weights)
