"""Convolutions whose second derivative is made of the convolutions that a gradient is made of.

PyTorch takes the weights' part of it, which sums over all examples, as a convolution of transposed images; the
kernel for the gradient of weights is faster. With x inputs, w weights, g = ∂ℓ/∂y and * the convolution, S = ⟨u, ∂ℓ/∂x⟩
+ ⟨p, ∂ℓ/∂w⟩ + ⟨q, ∂ℓ/∂b⟩ has

    ∂S/∂g = u * w + x * p + q      ∂S/∂x = ∂⟨g, x * p⟩/∂x      ∂S/∂w = ∂⟨g, u * w⟩/∂w
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_Found = Tensor | None
_convolution, _gradients = torch.ops.aten.convolution, torch.ops.aten.convolution_backward


class TwiceDifferentiableLayers(TorchFunctionMode):
    """While entered, convolutions are differentiated as above. Their values and gradients stay the same bits.

    A hard sigmoid, of which PyTorch has no second derivative, is written out: MobileNetV3 has it in each block.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func`, or do a convolution or a hard sigmoid as it is done here."""
        if func is functional.hardsigmoid:
            return (args[0] + 3).clamp(0, 6) / 6
        if func in (torch.conv1d, torch.conv2d, torch.conv3d):
            return _convolve(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _convolve(
    func: Callable[..., Tensor],
    input: Tensor,  # noqa: A002 - torch's name
    weight: Tensor,
    bias: _Found = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    dimensions = weight.dim() - 2
    if isinstance(padding, str) or input.dim() != weight.dim():
        return func(input, weight, bias, stride, padding, dilation, groups)
    stride, padding, dilation = (
        [one] * dimensions if isinstance(one, int) else one for one in (stride, padding, dilation)
    )
    # as both kernels take them; neither is transposed
    settings = (stride, padding, dilation, False, [0] * dimensions, groups)
    found: Tensor = _Convolution.apply(input, weight, bias, settings)
    return found


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: _Found, settings: tuple[Any, ...]) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.settings = settings
        found: Tensor = _convolution(inputs, weight, bias, *settings)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[_Found, ...]:
        inputs, weight = ctx.saved_tensors
        settings, wanted = ctx.settings, ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # the gradient is differentiated again
            return *_Gradients.apply(gradient, inputs, weight, settings, wanted), None
        return *_gradients(gradient, inputs, weight, [weight.shape[0]], *settings, wanted), None


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        gradient: Tensor,
        inputs: Tensor,
        weight: Tensor,
        settings: tuple[Any, ...],
        wanted: Sequence[bool],
    ) -> tuple[_Found, _Found, _Found]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gradient, inputs, weight)
        ctx.settings = settings
        found: tuple[_Found, _Found, _Found] = _gradients(
            gradient, inputs, weight, [weight.shape[0]], *settings, wanted
        )
        return found

    @staticmethod
    def backward(ctx: Any, u: _Found, p: _Found, q: _Found) -> tuple[_Found, ...]:
        gradient, inputs, weight = ctx.saved_tensors
        settings, rest = ctx.settings, ([weight.shape[0]], *ctx.settings)
        of_gradient = of_inputs = of_weight = None
        if p is not None:
            of_gradient = _convolution(inputs, p, q, *settings)
            if ctx.needs_input_grad[1]:
                of_inputs = _gradients(gradient, inputs, p, *rest, [True, False, False])[0]
        elif q is not None:
            of_gradient = q.reshape(-1, *[1] * (weight.dim() - 2)).expand(gradient.shape)
        if u is not None:
            moved = _convolution(u, weight, None, *settings)
            of_gradient = moved if of_gradient is None else moved.add_(of_gradient)
            if ctx.needs_input_grad[2]:
                of_weight = _gradients(gradient, u, weight, *rest, [False, True, False])[1]
        return of_gradient, of_inputs, of_weight, None, None
