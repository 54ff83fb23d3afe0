"""Where a model computes, and how a batch comes there."""

import torch

from unlearning.tasks.inputs import Inputs, each
from unlearning.tasks.task import Task


def computing_device() -> torch.device:
    """Return the accelerator where there is one, else the processor."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def inputs_for(task: Task, inputs: Inputs, device: torch.device) -> Inputs:
    """Return inputs as the model takes them: bytes and floats in its dtype, others (token ids) as they are."""

    def moved(one: torch.Tensor) -> torch.Tensor:
        if one.is_floating_point() or one.dtype == torch.uint8:
            return one.to(device=device, dtype=task.dtype, non_blocking=True)
        return one.to(device=device, non_blocking=True)

    return each(moved, inputs)


def targets_for(task: Task, targets: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return targets as the loss takes them: floats in the model's dtype, others (labels) as they are."""
    if targets.is_floating_point():
        return targets.to(device=device, dtype=task.dtype, non_blocking=True)
    return targets.to(device=device, non_blocking=True)
