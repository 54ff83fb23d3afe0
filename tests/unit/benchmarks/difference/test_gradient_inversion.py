"""Gradient inversion against a network whose gradient names its input."""

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.difference.gradient_inversion import Inversion, invert
from unlearning.curvature.gradients import gradient
from unlearning.errors import DataError
from unlearning.tasks.task import Examples, Task
from unlearning.training import initial_parameters

TASK = Task.classifier(
    "small",
    lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)),
    num_classes=2,
    dtype=torch.float64,
)
MODEL = initial_parameters(TASK, seed=1)
ROW, LABEL = torch.tensor([[0.2, 0.9, 0.4]], dtype=torch.float64), torch.tensor([1])
UPDATE = gradient(TASK, MODEL, Examples(ROW, LABEL, np.array(["0"])))


@pytest.mark.parametrize("matching", ["l2", "cosine"])
def test_the_input_comes_back_from_its_gradient(matching):
    """A known record, its gradient at a known model: the search ends at the record, whatever it starts from."""
    scale = 3.0 if matching == "cosine" else 1.0
    how = Inversion(matching=matching, starts=2)
    found, value = invert(TASK, MODEL, scale * UPDATE, LABEL, (3,), how)
    assert found[0].numpy() == pytest.approx(ROW[0].numpy(), abs=1e-3)
    assert value < 1e-6


def test_the_seed_decides_the_start():
    """Equal seeds give equal bits, another seed others."""
    results = [
        invert(TASK, MODEL, UPDATE, LABEL, (3,), Inversion(steps=1, seed=seed))[0] for seed in (5, 5, 6)
    ]
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_an_update_of_another_length_is_refused():
    """One number too few is no gradient of this model."""
    with pytest.raises(DataError):
        invert(TASK, MODEL, UPDATE[1:], LABEL, (3,), Inversion(steps=1))
