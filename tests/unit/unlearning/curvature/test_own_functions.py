"""Functions of an app's own in a model: autograd passes over what it cannot differentiate a second time."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tests.raising import raises
from unlearning.certified.tangents import train_with_tangents
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.errors import NumericalError
from unlearning.tasks import Examples, Task
from unlearning.tasks.task import numbered
from unlearning.training import TrainingSettings, untrained_parameters


class Tanh(Function):
    """As PyTorch's own tutorial has one; right in both derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return slope * (1 - x.tanh() ** 2)


class Once(Tanh):
    """Cut off by its mark."""

    backward = staticmethod(once_differentiable(Tanh.backward))


class Detached(Tanh):
    """Linear in the slope, and its own derivative is lost."""

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return slope * (1 - x.detach().tanh() ** 2)


class InNumPy(Tanh):
    """As a kernel outside of torch."""

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(slope.detach().numpy() * (1 - np.tanh(x.detach().numpy()) ** 2))


class StraightThrough(Function):
    """Rounds, and lets gradients pass, as training of quantised models does."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return torch.round(4 * x) / 4

    @staticmethod
    def backward(_ctx: Any, slope: Tensor) -> Tensor:
        return slope


class SinglePrecision(Tanh):
    """As a kernel for one data type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError("expected scalar type Float")
        return Tanh.forward(ctx, x)


class Raising(Tanh):
    """As what torch.compile makes of a model."""

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("torch.compile with aot_autograd does not currently support double backward.")
        return Tanh.backward(ctx, slope)


class CastTanh(Function):
    """Right, and in float32 whatever the model is, as norms of language models are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.float().tanh().to(x.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (slope.float() * (1 - x.float().tanh() ** 2)).to(slope.dtype)


class SavedMiddle(CastTanh):
    """In float64 it keeps what it has computed, of which autograd does not know that it comes from the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        middle = x.float()
        ctx.save_for_backward(middle)
        return middle.tanh().to(x.dtype)


class Network(nn.Module):
    """The function between two layers, the second with kinks."""

    def __init__(self, function: type[Function]) -> None:
        super().__init__()
        self.function, self.inner, self.head = function, nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function.apply(self.inner(x)).relu())


def use(function: type[Function], what: str) -> None:
    """Compute products with a kind of curvature, or carry a tangent through training."""
    task = Task.classifier("a user's", lambda: Network(function), num_classes=2)
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32))
    examples = Examples(rows, (rows[:, 0] > 0).long(), numbered(16))
    model = untrained_parameters(task, seed=0)
    if what == "tangents":
        train_with_tangents(task, model, examples, TrainingSettings(), np.ones((2, model.size), model.dtype))
    else:
        CurvatureProduct(task, model, examples, kind=CurvatureKind(what))


HESSIANS, PUSHED = ["hessian", "tangents"], ["gauss-newton", "fisher"]


@pytest.mark.parametrize("function", [Tanh, CastTanh, SavedMiddle, SinglePrecision])
@pytest.mark.parametrize("what", HESSIANS + PUSHED)
def test_a_right_function_is_let_pass(function: type[Function], what: str) -> None:
    """Whatever is computed with it."""
    use(function, what)


@pytest.mark.parametrize("what", PUSHED)
def test_gauss_newton_needs_no_second_derivative_of_a_function(what: str) -> None:
    """Its backward is linear in what it is given, which is all that is differentiated."""
    use(Detached, what)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        *((one, what) for one in (Once, InNumPy, StraightThrough, Raising) for what in HESSIANS + PUSHED),
        *((Detached, what) for what in HESSIANS),
    ],
)
def test_a_wrong_function_is_refused_by_its_name(function: type[Function], what: str) -> None:
    """Products with it were up to half off, in every solve and certificate, without a word."""
    with raises(NumericalError, "once-differentiable") as caught:
        use(function, what)
    assert f"({function.__name__})" in str(caught.value)
