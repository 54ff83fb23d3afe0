"""The settings of a client's local training that a person types, as plain values."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

OptimizerName: TypeAlias = Literal["sgd", "adam", "adamw"]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Local training; the sentence below a field is its row in docs/reference-settings.md (`make docs`)."""

    epochs: Annotated[int, Field(ge=1, alias="local-epochs")] = 1
    """passes over the client's examples"""
    batch_size: PositiveInt = 32
    """examples a step"""
    optimizer: OptimizerName = "sgd"
    """`sgd`, `adam`, `adamw`; its state starts again with every local training, unless `keep-optimizer` is set. PGA,
    MoDe, gradient ascent, NegGrad+ and FedOSD unlearn by SGD in any case, FedQUIT by Adam; `prepare="hf-online"` needs
    `sgd`"""
    learning_rate: PositiveFloat = 0.1
    """in round 1"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """SGD momentum"""
    weight_decay: NonNegativeFloat = 0.0
    """L2 penalty"""
    keep_optimizer: bool = False
    """each site keeps momentum or Adam's moments from one ordinary round to the next, in the built-in training; erased
    there when something of its own is forgotten, and started again by all after a deletion"""
    augment: bool = False
    """crop and flip in ordinary rounds (never in an unlearning round)"""
