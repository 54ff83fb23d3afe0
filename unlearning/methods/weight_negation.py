"""NoT: multiply the weights of the first layer by −1, then recover without the forgotten data.

Source: Khalil et al., "NoT: Federated Unlearning via Weight Negation", CVPR 2025.

    W_l ← −W_l   for the weight tensor of the first convolution or linear layer (no bias)

No client is asked. The unlearned model is the same for every target; what forgets is the recovery.
"""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from torch import nn

from unlearning.errors import MethodFailed
from unlearning.methods.costs import Cost, CostSymbols
from unlearning.methods.method import (
    AsksNobody,
    MethodInfo,
    MethodParameters,
    Problem,
    UnlearningState,
)
from unlearning.methods.safe_range import OperatorsOnly
from unlearning.parameters import Vector, slots_by_name
from unlearning.training import structure
from unlearning.verification.difference.holders import TargetSends

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
WEIGHTS = ("weight", "parametrizations.weight.original1", "weight_v")
"""As a layer holds it: plain, or the direction of `nn.utils.parametrizations.weight_norm` or `nn.utils.weight_norm`."""


def _from_words(value: Any) -> Any:
    """Read names as they are written on a command line: "0.weight,2.weight"."""
    return tuple(name for name in value.split(",") if name) if isinstance(value, str) else value


class WeightNegationParameters(MethodParameters):
    """Which tensors to negate."""

    layers: Annotated[tuple[str, ...], BeforeValidator(_from_words), OperatorsOnly()] = Field(
        default=(), description="names of tensors, by commas; empty: the weight of the first layer"
    )


class WeightNegation(AsksNobody[WeightNegationParameters]):
    """NoT; the server does everything in `begin`."""

    Parameters = WeightNegationParameters
    info = MethodInfo(
        name="not",
        title="NoT (weight negation)",
        source="Khalil et al., NoT: Federated Unlearning via Weight Negation",
        target_sends=TargetSends.KEPT,
        remark="gives the same model for every target; recovery without the data does the forgetting",
        sums_suffice=True,
    )

    def begin(self, problem: Problem[WeightNegationParameters], parameters: Vector) -> UnlearningState:
        """Negate the weights.

        Raises:
            MethodFailed: a named tensor is not in the model, or it has no layer to negate.
        """
        model = structure(problem.task)
        slots = {name: slot for name, slot in slots_by_name(model).items() if not slot.is_buffer}
        names = problem.parameters.layers or first_layer(model)
        unknown = [name for name in names if name not in slots]
        if unknown or not names:
            raise MethodFailed(
                f"The model has no weight tensor {', '.join(unknown) or 'of a convolution or linear layer'}. "
                f"It has: {', '.join(list(slots)[:10])}{', …' if len(slots) > 10 else ''}.",
                retryable=False,
                code="unfit-parameter",
            )
        negated = parameters.copy()
        for slot in {slots[name] for name in names}:  # W_l ← −W_l, once where two names are of one tensor
            negated[slot.start : slot.stop] *= -1
        state = UnlearningState(parameters=negated, finished=True)
        return replace(state, findings={"negated tensors": list(names)})

    def cost(self, given: CostSymbols, parameters: WeightNegationParameters, preparation: object) -> Cost:
        """Compute 0 and P B stored: no client is asked."""
        return given.trips(0, storage_bytes=given.model_bytes)


def first_layer(model: nn.Module) -> tuple[str, ...]:
    """Return the name of the first trained convolution's or linear layer's weight, in the order of definition.

    Of one with weight normalisation it is the direction. One with spectral normalisation is passed over: it divides by
    a number that is negated with the weight.
    """
    for name, module in model.named_modules():
        if isinstance(module, LAYERS):
            own, prefix = dict(module.named_parameters()), f"{name}." if name else ""
            for weight in WEIGHTS:
                if weight in own and own[weight].requires_grad:
                    return (f"{prefix}{weight}",)
    return ()
