"""Functions of an app's own in a model or a loss (`torch.autograd.Function`), whose derivatives autograd cannot know.

A product with the curvature differentiates through their backward. Where that is marked once_differentiable, leaves
autograd (NumPy, a kernel, `detach`) or belongs to another function than the forward, autograd raises nothing: the
product lacks a part of the curvature. So such a model's derivatives are compared with central differences on a few of
its examples: in float64, and where that does not do in the model's own data type, which is all that some kernels know.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from unlearning.curvature.gradients import gradient
from unlearning.curvature.kinds import BATCH_CURVATURE, BatchCurvature, CurvatureKind, OutputCurvatureOfBatch
from unlearning.curvature.local_loss import LocalLoss, exact_kernels
from unlearning.errors import NumericalError
from unlearning.one_line import as_line
from unlearning.parameters import Vector
from unlearning.task_contract import few_of
from unlearning.tasks.task import Examples, Task

STEPS = {torch.float64: (1e-7, 1e-5, 1e-3)}
"""Of central differences. With the first a kink (ReLU) is rarely crossed; a model that computes something in float32
all the same needs the last."""
_STEPS_OTHERWISE = (1e-3, 1e-2)
TOLERANCE = 0.01
"""Of the difference, as a share of the derivative, with one of the steps in one of the directions."""
_DIRECTIONS = 3


def check_own_functions(
    loss: Tensor, task: Task, parameters: Vector, examples: Examples, kind: CurvatureKind
) -> None:
    """Refuse functions of the app's own that `loss` goes through, if a product of `kind` with them is wrong.

    parameters (d,), examples: where the two derivatives are compared.

    Raises:
        NumericalError: it is, or cannot be computed.
    """
    names = sorted(set(_own_functions(loss)))
    if not names:
        return
    few, gap, why = few_of(examples), math.inf, "Its derivatives are not finite."
    for exact in (replace(task, dtype=torch.float64), task):
        try:
            gap = min(gap, _least_gap(exact, parameters, few, kind))
        except (RuntimeError, TypeError) as exc:
            why = as_line(str(exc), 300)
        if gap <= TOLERANCE:
            return
    wrong = why if math.isinf(gap) else f"A product with it is {gap:.0%} off finite differences."
    raise NumericalError(
        f"The model or loss of {task.name} has functions of its own ({', '.join(names)}) through which the curvature "
        f"cannot be computed. {wrong} Write their backward with operations of torch on saved inputs, without "
        "once_differentiable, NumPy or detach, or choose a method without curvature.",
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


def _least_gap(task: Task, parameters: Vector, examples: Examples, kind: CurvatureKind) -> float:
    """Return by how much derivatives along random directions are off central differences, as a share of them.

    The least that was found; no further ones are computed once it is small.
    """
    dtype = torch.empty(0, dtype=task.dtype).numpy().dtype
    parameters = parameters.astype(dtype, copy=False)
    local = LocalLoss(task, parameters, examples)
    least = math.inf
    with exact_kernels(local.device):
        graph = BATCH_CURVATURE[kind](local, slice(0, len(local)))
        for seed in range(_DIRECTIONS):
            parts = local.split(np.random.default_rng(seed).standard_normal(local.dimension))
            found, at = _derivative(local, graph, parameters, parts)
            for step in STEPS.get(task.dtype, _STEPS_OTHERWISE):
                one, other = at(step), at(-step)
                expected = (one - other) / (2 * step)
                rounding = 1e-6 * float(one.norm())
                largest = max(float(expected.norm()), float(found.norm()), rounding)
                if largest == 0 or float((found - expected).norm()) <= rounding:
                    return 0.0
                least = min(least, float((found - expected).norm()) / largest)
                if least <= TOLERANCE:
                    return least
    return least


def _derivative(
    local: LocalLoss, graph: BatchCurvature, parameters: Vector, parts: tuple[Tensor, ...]
) -> tuple[Tensor, Callable[[float], Tensor]]:
    """Return what is differentiated along `parts`, and the function that gives it at a distance from `parameters`."""
    product, direction = local.zeros(), local.zeros()
    local.add(product, graph.product(parts, keep=True))
    if isinstance(graph, OutputCurvatureOfBatch):
        return graph.push_forward(parts), partial(_outputs_at, local, graph, parts)
    local.add(direction, parts)
    along = direction.cpu().numpy()

    def gradient_at(step: float) -> Tensor:
        moved = gradient(
            local.task, (parameters + step * along).astype(parameters.dtype, copy=False), local.examples
        )
        return torch.from_numpy(moved).to(local.device)

    return product, gradient_at


def _outputs_at(
    local: LocalLoss, graph: OutputCurvatureOfBatch, parts: tuple[Tensor, ...], step: float
) -> Tensor:
    weights = {
        name: parameter.detach() + step * part
        for name, parameter, part in zip(local.names, local.trainable, parts, strict=True)
    }
    with torch.no_grad():
        return graph.outputs_of(weights)
