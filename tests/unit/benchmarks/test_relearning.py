"""Relearn time on one weight, whose distance from the target is halved by each round of gradient descent."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.persistence.relearning import RelearnTime, relearn_time
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings


def _measures(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    distance = (outputs - targets).flatten().abs()
    return distance**2, (distance < 0.3).to(distance.dtype), torch.zeros_like(distance)


TASK = Task(
    name="one weight",
    num_classes=0,
    score_name="hits",
    build_model=lambda: nn.Linear(1, 1, bias=False),
    loss=lambda outputs, targets: ((outputs - targets) ** 2).mean(),
    per_example=_measures,
    dtype=torch.float64,
)
FORGOTTEN = Examples(
    torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64), np.array(["a"])
)
TRAINING = TrainingSettings(learning_rate=0.25, batch_size=1)


def time_of(weight: float, original: float, most_rounds: int = 10) -> RelearnTime:
    """The relearn time of a model of this weight; the data wants the weight 1."""
    return relearn_time(
        TASK,
        np.array([weight]),
        original=np.array([original]),
        forgotten=FORGOTTEN,
        training=TRAINING,
        most_rounds=most_rounds,
    )


@pytest.mark.parametrize(("weight", "rounds"), [(0.0, 3), (-1.0, 4), (0.5, 2), (0.875, 0), (1.0, 0)])
def test_the_relearn_time_is_the_number_of_halvings_to_the_originals_loss(weight, rounds):
    """The original is an eighth away, and each round goes half of the way."""
    assert time_of(weight, 0.875).loss == rounds


def test_the_score_is_looked_at_apart_from_the_loss():
    """From 1 away to below 0.3 takes two rounds, to an eighth three."""
    assert time_of(0.0, 0.875) == RelearnTime(loss=3, score=2)


def test_what_is_not_relearnt_in_the_most_rounds_has_no_time():
    """None is another thing than the most rounds."""
    assert time_of(0.0, 0.875, most_rounds=2) == RelearnTime(loss=None, score=2)
