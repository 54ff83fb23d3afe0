"""Where a model computes, how a batch comes there, and what random numbers are drawn."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from unlearning.tasks.inputs import Inputs, each
from unlearning.tasks.task import Task


def computing_device() -> torch.device:
    """Return the accelerator where there is one, else the processor."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def drawing(seed: int, device: torch.device) -> Iterator[None]:
    """Draw from the global random states of torch, NumPy and Python as of this seed, and leave them as they were."""
    on_gpu, pythons, numpys = device.type == "cuda", random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with torch.random.fork_rng(devices=[device] if on_gpu else []):
            if on_gpu:
                torch.manual_seed(seed)
            else:  # torch.manual_seed notes the call stack three times, for devices that are not there
                torch.default_generator.manual_seed(seed)
            yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)


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
