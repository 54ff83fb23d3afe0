"""The classifier head of a model: its last linear layer, as a part of the flat vector."""

from collections.abc import Sequence

import numpy as np
from torch import nn

from unlearning.errors import MethodFailed
from unlearning.parameters import Slot, Vector, slots_by_name
from unlearning.tasks.task import Task
from unlearning.training import structure


def head_slots(task: Task) -> tuple[Slot, ...]:
    """Return where the last linear layer's weight and bias lie in the flat vector.

    Raises:
        MethodFailed: the task is no classification, or the model's last layer is not linear.
    """
    model = structure(task)
    name, head = classifier_head(model)
    if (
        task.shard is not None
        or head is None
        or task.score_name != "accuracy"
        or head.out_features != task.num_classes
        or not all(parameter.requires_grad for parameter in head.parameters())
        or _is_tied(model, head)
    ):
        raise MethodFailed(
            "FedAU needs a classifier whose last layer is linear with one output a class, trained, and shares no "
            "weights with another layer; this model has none. Choose another method.",
            retryable=False,
            code="no-classifier-head",
        )
    slots, prefix = slots_by_name(model), f"{name}." if name else ""
    return tuple(slots[f"{prefix}{part}"] for part in ("weight", "bias") if f"{prefix}{part}" in slots)


def _is_tied(model: nn.Module, head: nn.Linear) -> bool:
    """Return whether another module has one of the head's parameters too."""
    others = (module for module in model.modules() if module is not head)
    elsewhere = {id(one) for module in others for one in module.parameters(recurse=False)}
    return any(id(one) in elsewhere for one in head.parameters())


def size_of(slots: Sequence[Slot]) -> int:
    """Return how many numbers a head has."""
    return sum(slot.stop - slot.start for slot in slots)


def head_in(parameters: Vector, slots: Sequence[Slot]) -> Vector:
    """Return the head's weight and bias, flat, in the model's order."""
    return np.concatenate([parameters[slot.start : slot.stop] for slot in slots])


def with_head(parameters: Vector, slots: Sequence[Slot], head: Vector) -> Vector:
    """Return `parameters` (d,) with another head, flat as `head_in` gives it."""
    changed, position = parameters.copy(), 0
    for slot in slots:
        width = slot.stop - slot.start
        changed[slot.start : slot.stop] = head[position : position + width]
        position += width
    return changed


def classifier_head(model: nn.Module) -> tuple[str, nn.Linear | None]:
    """Return the model's last linear layer with its name in the model; None where there is none."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return found[-1] if found else ("", None)
