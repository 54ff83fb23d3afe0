"""The kinds of curvature, each as a product with one micro-batch's share of the matrix.

Legend: ℓ mean loss of the micro-batch, w = n_b/n its weight, z(θ) the model's outputs, J = ∂z/∂θ,
v the vector.

Hessian         w ∇²ℓ v              double backward: the gradient of ⟨∇ℓ, v⟩, through `convolutions`
Gauss-Newton    w Jᵀ (∇²_z ℓ) J v    Jv forward, the Hessian of the loss in z between, Jᵀ backward;
                                     positive semi-definite where ℓ is convex in z
Fisher          Σ_i ∇ℓ_i ⟨∇ℓ_i, v⟩/n the same with z the vector of per-example losses and 1/n between

The Hessian never goes forward: forward mode over `jacrev` is wrong with affine norms. Jv goes forward because
that needs only the first-order graph of z to be kept, for Jᵀ, which is a third of what a pull-back through
which Jv could be taken backward holds, at about the same time. That pull-back serves models that have
no forward mode (a function of the user's own, GroupNorm on channels-last images). A graph that has served
many products may take Jv from a recording instead (`recorded`).
"""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from unlearning.curvature.convolutions import TwiceDifferentiableLayers
from unlearning.curvature.local_loss import LocalLoss, twice_differentiable
from unlearning.curvature.recorded import PushForward, recorded_derivative
from unlearning.errors import NumericalError

_log = logging.getLogger(__name__)

OutputsOf: TypeAlias = Callable[[Mapping[str, Tensor]], Tensor]


class CurvatureKind(StrEnum):
    """Which matrix: see the module's docstring."""

    HESSIAN = "hessian"
    GAUSS_NEWTON = "gauss-newton"
    FISHER = "fisher"


class BatchCurvature(Protocol):
    """One micro-batch's graph, which `product` may use again and again while `keep` is true."""

    def product(self, vector: Sequence[Tensor], *, keep: bool) -> tuple[Tensor, ...]:
        """Return the micro-batch's share of the matrix times `vector`, one tensor a trainable parameter."""
        ...


class HessianOfBatch:
    """Double backward through the batch's gradient."""

    def __init__(self, local: LocalLoss, batch: slice) -> None:
        self._task = local.task
        self._inputs = local.trainable
        inputs, targets = local.read(batch)
        with TwiceDifferentiableLayers():
            loss = local.task.loss(local.outputs(inputs), targets) * local.weight(batch)
        self._gradient = _gradients((loss,), self._inputs, create_graph=True)

    def product(self, vector: Sequence[Tensor], *, keep: bool) -> tuple[Tensor, ...]:
        """Compute W ∇²ℓ v."""
        with twice_differentiable(self._task):
            return _gradients(self._gradient, self._inputs, vector, retain_graph=keep)


class OutputCurvatureOfBatch:
    """Jᵀ M J for z a function of the weights and a symmetric matrix M on z, given as a product."""

    def __init__(
        self, local: LocalLoss, function: OutputsOf, outputs: Tensor, middle: Callable[[Tensor], Tensor]
    ) -> None:
        self._local, self._outputs, self._middle = local, outputs, middle
        self.outputs_of = function
        self._pull_back: _PullBack | None = None
        self._recorded: PushForward | None = None

    def product(self, vector: Sequence[Tensor], *, keep: bool) -> tuple[Tensor, ...]:
        """Compute Jᵀ M J v."""
        pushed = self.push_forward(vector)
        return _gradients((self._outputs,), self._local.trainable, (self._middle(pushed),), retain_graph=keep)

    def record(self) -> bool:
        """Take Jv from a recording from now on; False where that cannot be, see `recorded`."""
        if self._pull_back is None and self._recorded is None:
            self._recorded = recorded_derivative(self._local, self.outputs_of, self.push_forward)
        return self._recorded is not None

    def push_forward(self, vector: Sequence[Tensor]) -> Tensor:
        """Return Jv, the derivative of the outputs along `vector`."""
        if self._recorded is not None:
            return self._recorded(vector)
        if self._pull_back is None:
            try:
                return _forward_derivative(self._local, self.outputs_of, vector)
            except (RuntimeError, NotImplementedError) as exc:
                _log.info("The model has no forward-mode derivative (%s); going backward twice.", exc)
                self._pull_back = _PullBack(self._outputs, self._local.trainable)
        with twice_differentiable(self._local.task):
            return self._pull_back.forward(vector)


class _PullBack:
    """u ↦ Jᵀu as a graph. It is linear in u, and the gradient of ⟨Jᵀu, v⟩ with respect to u is Jv."""

    def __init__(self, outputs: Tensor, inputs: Sequence[Tensor]) -> None:
        self._dummy = torch.zeros_like(outputs, requires_grad=True)
        self._pulled_back = _gradients((outputs,), inputs, (self._dummy,), create_graph=True)

    def forward(self, vector: Sequence[Tensor]) -> Tensor:
        return _gradients(self._pulled_back, (self._dummy,), vector, retain_graph=True)[0]


def _forward_derivative(local: LocalLoss, function: OutputsOf, vector: Sequence[Tensor]) -> Tensor:
    """Return the derivative of `function` along `vector`, by forward mode, without a graph."""
    with torch.no_grad(), warnings.catch_warnings(), forward_ad.dual_level():
        # the first dual tensor makes torch import modules that it has itself deprecated
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        duals = [
            forward_ad.make_dual(parameter.detach(), part)  # type: ignore[no-untyped-call]
            for parameter, part in zip(local.trainable, vector, strict=True)
        ]
        moved = function(dict(zip(local.names, duals, strict=True)))
        value, derivative = forward_ad.unpack_dual(moved)  # type: ignore[no-untyped-call]
        return torch.zeros_like(value) if derivative is None else derivative


def gauss_newton_of_batch(local: LocalLoss, batch: slice) -> BatchCurvature:
    """Return the generalised Gauss-Newton matrix: M is the Hessian of the loss with respect to the
    outputs.
    """
    inputs, targets = local.read(batch)
    outputs = local.outputs(inputs)
    detached = outputs.detach().requires_grad_()
    loss = local.task.loss(detached, targets) * local.weight(batch)
    gradient = _gradients((loss,), (detached,), create_graph=True)

    def middle(pushed: Tensor) -> Tensor:
        # kept: the graph between outputs and loss is small beside the model's
        return _gradients(gradient, (detached,), (pushed,), retain_graph=True)[0]

    return OutputCurvatureOfBatch(local, partial(local.outputs, inputs), outputs, middle)


def fisher_of_batch(local: LocalLoss, batch: slice) -> BatchCurvature:
    """Return the empirical Fisher matrix: the outputs are the per-example losses, M is 1/n."""

    inputs, targets = local.read(batch)

    def losses_of(weights: Mapping[str, Tensor] | None = None) -> Tensor:
        return local.task.per_example(local.outputs(inputs, weights), targets)[0]

    losses = losses_of()
    if not losses.requires_grad:
        raise NumericalError(
            f"The per-example losses of the task {local.task.name!r} have no gradient, so there is no "
            "empirical Fisher matrix. Let per_example return losses that can be differentiated."
        )
    return OutputCurvatureOfBatch(local, losses_of, losses, lambda pushed: pushed / len(local))


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
    """Return gradients of Σ ⟨outputs, vectors⟩, zero where an output or an input takes no part."""
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
