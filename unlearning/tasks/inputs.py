"""What a model is given: one tensor, or several by the names of the arguments of its `forward` (`input_ids`, …)."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from unlearning.errors import AppError, DataError

Inputs: TypeAlias = Tensor | Mapping[str, Tensor]
"""Of n examples: (n, ...), or several such tensors by name."""


def each(function: Callable[..., Tensor], inputs: Inputs, *others: Inputs) -> Inputs:
    """Return what `function` makes of the tensors, or of each tensor by name."""
    if isinstance(inputs, Tensor):
        return function(inputs, *others)
    named: list[Any] = list(others)
    return {name: function(one, *(other[name] for other in named)) for name, one in inputs.items()}


def one_tensor(inputs: Inputs, why: str) -> Tensor:
    """Return the inputs where they are one tensor.

    Raises:
        DataError: they are several; `why` says what needs one.
    """
    if isinstance(inputs, Tensor):
        return inputs
    raise DataError(f"The inputs are several tensors ({', '.join(inputs)}), and {why}.", code="many-tensors")


def arguments_of(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the positional and the named arguments of a model's call."""
    return ((inputs,), {}) if isinstance(inputs, Tensor) else ((), dict(inputs))


def outputs_of(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return the model's outputs (n, ...).

    Raises:
        AppError: it returns something else.
    """
    positional, named = arguments_of(inputs)
    return as_outputs(model, model(*positional, **named))


def versions(inputs: Inputs) -> list[int]:
    """Return torch's counter of writes of each tensor, which moves where a forward works in place (`x -= mean`).

    Those of inference mode have none.
    """
    tensors = [inputs] if isinstance(inputs, Tensor) else inputs.values()
    return [0 if one.is_inference() else one._version for one in tensors]


def as_outputs(model: nn.Module, returned: Any) -> Tensor:
    """Return what a model returned, or its `logits` where it is an output of the package transformers.

    Raises:
        AppError: it is neither.
    """
    outputs = returned if isinstance(returned, Tensor) else getattr(returned, "logits", None)
    if isinstance(outputs, Tensor):
        return outputs
    raise AppError(
        f"The model {type(model).__name__} returns {type(returned).__name__} and no tensor. Let its forward return one "
        "tensor with a row per example, such as logits.",
        code="no-tensor",
    )


def count_of(inputs: Inputs) -> int:
    """Return n.

    Raises:
        DataError: there is no tensor, or they differ in n.
    """
    if isinstance(inputs, Tensor):
        return len(inputs)
    if not isinstance(inputs, Mapping):
        raise DataError(
            f"Inputs are a tensor, or several by name, got {type(inputs).__name__}. For arrays of NumPy there is "
            "Examples.from_arrays.",
            code="no-tensor",
        )
    counts = {name: len(one) for name, one in inputs.items()}
    if len(set(counts.values())) != 1:
        shown = ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"
        raise DataError(f"The tensors of inputs need a row per example each, got {shown}.")
    return next(iter(counts.values()))
