"""Convolutions' second derivative against PyTorch's own in float64, and their values and gradients to the bit."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from unlearning.curvature.convolutions import TwiceDifferentiableLayers

Convolving = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def of_2d(**settings: Any) -> Convolving:
    return lambda inputs, weight, bias: functional.conv2d(inputs, weight, bias, **settings)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


CASES: dict[str, tuple[Convolving, Sequence[int], Sequence[int]]] = {
    "plain": (of_2d(), (3, 2, 6, 5), (4, 2, 3, 3)),
    "stride, padding": (of_2d(stride=2, padding=(1, 2)), (2, 2, 7, 6), (4, 2, 3, 2)),
    "a stride that leaves out the last rows": (of_2d(stride=(3, 2)), (2, 2, 8, 8), (3, 2, 2, 3)),
    "dilation": (of_2d(dilation=(2, 1), padding=1), (2, 3, 6, 6), (2, 3, 2, 2)),
    "groups": (of_2d(groups=2, padding=1), (2, 4, 5, 5), (6, 2, 3, 3)),
    "by channel": (of_2d(groups=4, stride=2), (2, 4, 5, 5), (4, 1, 3, 3)),
    "padding in words": (of_2d(padding="same"), (2, 2, 5, 5), (3, 2, 3, 3)),
    "one image": (of_2d(padding=1), (2, 5, 5), (3, 2, 3, 3)),
    "one pixel": (of_2d(), (1, 1, 1, 1), (1, 1, 1, 1)),
    "in one dimension": (lambda x, w, b: torch.conv1d(x, w, b, stride=2), (3, 2, 9), (4, 2, 3)),
    "in three": (lambda x, w, b: functional.conv3d(x, w, b, padding=1), (2, 1, 4, 3, 5), (2, 1, 2, 3, 2)),
}


def derivatives(
    convolve: Convolving, inputs: Tensor, weight: Tensor, bias: Tensor | None, *, ours: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Value and gradients, and the Hessian's product with a fixed vector, of a loss that is curved in each argument."""
    varied = [one for one in (inputs, weight, bias) if one is not None and one.requires_grad]
    vector = [torch.cos(torch.arange(one.numel(), dtype=one.dtype)).reshape(one.shape) for one in varied]
    with TwiceDifferentiableLayers() if ours else nullcontext():
        outputs = convolve(inputs, weight, bias)
    loss = (outputs.sin() * outputs.detach().cos()).sum() + (inputs**3).sum()
    gradients = torch.autograd.grad(loss, varied, create_graph=True)
    return [outputs, *gradients], [*torch.autograd.grad(gradients, varied, vector)]


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("varied", ["all", "inputs", "weight"])
@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_pytorchs(name, varied, with_bias):
    convolve, *shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)
    inputs, weight = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    bias = torch.randn(shapes[1][0], dtype=torch.float64, generator=generator) if with_bias else None
    for one in {"all": (inputs, weight, bias), "inputs": (inputs,), "weight": (weight,)}[varied]:
        if one is not None:
            one.requires_grad_()
    first, second = derivatives(convolve, inputs, weight, bias, ours=False)
    own_first, own_second = derivatives(convolve, inputs, weight, bias, ours=True)
    for ours, theirs in zip(own_first, first, strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(own_second, second, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_only_the_bias_varies():
    """The output is linear in it, so its part of the gradient's derivative is its own vector on each pixel."""
    inputs, weight = torch.randn(2, 2, 4, 4).double(), torch.randn(3, 2, 3, 3).double()
    bias = torch.randn(3).double().requires_grad_()
    found = [derivatives(of_2d(), inputs, weight, bias, ours=ours)[1] for ours in (True, False)]
    torch.testing.assert_close(*found)


def test_third_derivatives_are_right_too():
    inputs, weight = torch.randn(2, 2, 4, 4).double(), torch.randn(3, 2, 3, 3).double().requires_grad_()
    found = []
    for context in (TwiceDifferentiableLayers(), nullcontext()):
        with context:
            one = functional.conv2d(inputs, weight).pow(4).sum()
        for _ in range(3):
            (one,) = torch.autograd.grad(one.pow(2).sum(), weight, create_graph=True)
        found.append(one)
    torch.testing.assert_close(*found)


def test_layers_of_a_model_are_reached():
    """Also those that pad by reflection, and images in channels-last order."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.Conv2d(4, 2, 1)).double()
    inputs = torch.randn(3, 2, 5, 5).double().to(memory_format=torch.channels_last)
    products = []
    for context in (TwiceDifferentiableLayers(), nullcontext()):
        parameters = [*model.parameters()]
        with context:
            loss = model(inputs).sin().sum()
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        names = {type(one.grad_fn).__name__ for one in gradients}
        assert ("_GradientsBackward" in names) == isinstance(context, TwiceDifferentiableLayers)
        products.append(
            torch.autograd.grad(gradients, parameters, [torch.ones_like(one) for one in parameters])
        )
    torch.testing.assert_close(*products)
