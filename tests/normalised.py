"""A small federation whose network has batch normalisation; one client's inputs are more spread than the others'."""

import numpy as np
import torch
from torch import nn

from unlearning.local import Sites
from unlearning.tasks.losses import classification_measures, cross_entropy
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings


def network() -> nn.Module:
    """Return layers that normalise their inputs and what they hold."""
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


TASK = Task(
    name="three classes, normalised",
    num_classes=3,
    score_name="accuracy",
    build_model=network,
    loss=cross_entropy,
    per_example=classification_measures,
)
TRAINING = TrainingSettings(epochs=1, batch_size=16, learning_rate=0.1, seed=0)


def examples(client: str, count: int = 48, spread: float = 1.0, shift: float = 0.0) -> Examples:
    """Return three classes, their inputs scaled by `spread` and moved by `shift`."""
    generator = torch.Generator().manual_seed(sum(map(ord, client)))
    labels = torch.arange(count) % 3
    centres = torch.tensor([[2.0, 0.0, 1.0, 0.0], [-2.0, 1.0, 0.0, 0.0], [0.0, -2.0, 0.0, 1.0]])[labels]
    inputs = spread * (centres + 0.5 * torch.randn(count, 4, generator=generator)) + shift
    return Examples(inputs, labels, np.array([f"{client}-{row}" for row in range(count)]))


def sites(spread: float = 1.5, shift: float = 0.0) -> Sites:
    """Return four clients, of which `u` has other inputs."""
    return {
        "r": examples("r"),
        "s": examples("s", 60),
        "t": examples("t"),
        "u": examples("u", spread=spread, shift=shift),
    }
