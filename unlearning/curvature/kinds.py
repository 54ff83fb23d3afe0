"""The kinds of curvature, each as a product with one micro-batch's share of the matrix.

Legend: ℓ mean loss of the micro-batch, w = n_b/n its weight, z(θ) the model's outputs, J = ∂z/∂θ,
v the vector. Only reverse mode is used: it works with GroupNorm, activation checkpointing and
functions of the user's own that have no forward mode, and forward mode over `jacrev` is wrong.

Hessian         w ∇²ℓ v            gradient of ⟨∇ℓ, v⟩
Gauss-Newton    w Jᵀ (∇²_z ℓ) J v  z between the two; positive semi-definite where ℓ is convex in z
Fisher          Σ_i ∇ℓ_i ⟨∇ℓ_i, v⟩/n  the same with z the vector of per-example losses and 1/n between

Jv is the gradient of ⟨Jᵀu, v⟩ with respect to u, in which it is linear, so u may be zero.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor

from unlearning.curvature.local_loss import LocalLoss
from unlearning.errors import NumericalError


class CurvatureKind(StrEnum):
    """Which matrix: see the module's docstring."""

    HESSIAN = "hessian"
    GAUSS_NEWTON = "gauss-newton"
    FISHER = "fisher"


class BatchCurvature(Protocol):
    """One micro-batch's graph, which `product` may use again and again while `keep` is true."""

    def product(self, vector: Sequence[Tensor], *, keep: bool) -> tuple[Tensor, ...]:
        """The micro-batch's share of the matrix times `vector`, one tensor a trainable parameter."""
        ...


class HessianOfBatch:
    """Double backward through the batch's gradient."""

    def __init__(self, local: LocalLoss, batch: slice) -> None:
        self._inputs = local.trainable
        loss = local.task.loss(local.outputs(batch), local.targets(batch)) * local.weight(batch)
        self._gradient = _gradients((loss,), self._inputs, create_graph=True)

    def product(self, vector: Sequence[Tensor], *, keep: bool) -> tuple[Tensor, ...]:
        """W ∇²ℓ v."""
        return _gradients(self._gradient, self._inputs, vector, retain_graph=keep)


class OutputCurvatureOfBatch:
    """Jᵀ M J for outputs z of the model and a symmetric matrix M on them, given as a product."""

    def __init__(
        self, outputs: Tensor, middle: Callable[[Tensor], Tensor], inputs: Sequence[torch.nn.Parameter]
    ) -> None:
        self._inputs, self._outputs, self._middle = inputs, outputs, middle
        self._dummy = torch.zeros_like(outputs, requires_grad=True)
        self._pulled_back = _gradients((outputs,), inputs, (self._dummy,), create_graph=True)

    def product(self, vector: Sequence[Tensor], *, keep: bool) -> tuple[Tensor, ...]:
        """Jᵀ M J v."""
        # The graph of the outputs is still needed for Jᵀ, and the pull-back's graph contains it.
        (pushed,) = _gradients(self._pulled_back, (self._dummy,), vector, retain_graph=True)
        return _gradients((self._outputs,), self._inputs, (self._middle(pushed),), retain_graph=keep)


def gauss_newton_of_batch(local: LocalLoss, batch: slice) -> BatchCurvature:
    """The generalised Gauss-Newton matrix: M is the Hessian of the loss with respect to the outputs."""
    outputs = local.outputs(batch)
    detached = outputs.detach().requires_grad_()
    loss = local.task.loss(detached, local.targets(batch)) * local.weight(batch)
    gradient = _gradients((loss,), (detached,), create_graph=True)

    def middle(pushed: Tensor) -> Tensor:
        # kept: the graph between outputs and loss is small beside the model's
        return _gradients(gradient, (detached,), (pushed,), retain_graph=True)[0]

    return OutputCurvatureOfBatch(outputs, middle, local.trainable)


def fisher_of_batch(local: LocalLoss, batch: slice) -> BatchCurvature:
    """The empirical Fisher matrix: the outputs are the per-example losses, M is 1/n."""
    losses, _, _ = local.task.per_example(local.outputs(batch), local.targets(batch))
    if not losses.requires_grad:
        raise NumericalError(
            f"The per-example losses of the task {local.task.name!r} have no gradient, so there is no "
            "empirical Fisher matrix. Let per_example return losses that can be differentiated."
        )
    return OutputCurvatureOfBatch(losses, lambda pushed: pushed / len(local), local.trainable)


BATCH_CURVATURE: Mapping[CurvatureKind, Callable[[LocalLoss, slice], BatchCurvature]] = {
    CurvatureKind.HESSIAN: HessianOfBatch,
    CurvatureKind.GAUSS_NEWTON: gauss_newton_of_batch,
    CurvatureKind.FISHER: fisher_of_batch,
}


def _gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    vectors: Sequence[Tensor] | None = None,
    *,
    create_graph: bool = False,
    retain_graph: bool = False,
) -> tuple[Tensor, ...]:
    """Gradients of Σ ⟨outputs, vectors⟩, zero where an output or an input takes no part."""
    if vectors is None:
        vectors = [torch.ones_like(output) for output in outputs]
    # the gradient of a parameter in which the loss is linear, or which is unused, is a constant
    varying = [pair for pair in zip(outputs, vectors, strict=True) if pair[0].requires_grad]
    if not varying:
        return tuple(torch.zeros_like(one) for one in inputs)
    return torch.autograd.grad(
        [output for output, _ in varying],
        inputs,
        [vector for _, vector in varying],
        retain_graph=retain_graph or create_graph,
        create_graph=create_graph,
        allow_unused=True,
        materialize_grads=True,
    )
