"""The classifier head of a model: its last linear layer, as a part of the flat vector."""

from collections.abc import Sequence

import numpy as np
from torch import nn

from unlearning.errors import MethodFailed
from unlearning.parameters import Slot, Vector, layout
from unlearning.tasks.task import Task
from unlearning.training import build


def head_slots(task: Task) -> tuple[Slot, ...]:
    """Return where the last linear layer's weight and bias lie in the flat vector.

    Raises:
        MethodFailed: the task is no classification, or the model's last layer is not linear.
    """
    model = build(task, seed=0)
    name, head = classifier_head(model)
    if (
        task.shard is not None
        or head is None
        or task.score_name != "accuracy"
        or head.out_features != task.num_classes
        or not all(parameter.requires_grad for parameter in head.parameters())
    ):
        raise MethodFailed(
            "FedAU needs a classifier whose last layer is linear with one output a class, and trained; this model has "
            "none. Choose another method.",
            retryable=False,
        )
    prefix = f"{name}." if name else ""
    return tuple(slot for slot in layout(model) if slot.name in (f"{prefix}weight", f"{prefix}bias"))


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
