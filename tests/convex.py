"""A convex federation for methods to be compared with exact retraining: logistic regression with an L2 term, float64.

Three clients of two overlapping classes in the plane; client u's are turned, so that it pulls the model its own way.
"""

from collections.abc import Mapping
from functools import reduce

import numpy as np
import torch
from scipy.optimize import minimize
from torch import nn

from tests.tasks import tiny_classification
from unlearning.curvature import gradient
from unlearning.parameters import Vector
from unlearning.tasks.task import Examples, join
from unlearning.training import TrainingSettings, evaluate, initial_parameters

WEIGHT_DECAY = 0.05
TASK = tiny_classification(lambda: nn.Linear(2, 2))
TRAINING = TrainingSettings(learning_rate=0.5, batch_size=1000, weight_decay=WEIGHT_DECAY)


def plane(client: str, count: int, turned: float) -> Examples:
    """Two classes along an axis turned by so many radians."""
    generator = torch.Generator().manual_seed(len(client) + count)
    labels = torch.arange(count) % 2
    axis = torch.tensor([np.cos(turned), np.sin(turned)], dtype=torch.float64)
    centres = (2.0 * labels[:, None] - 1) * axis
    inputs = centres + 0.7 * torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return Examples(inputs, labels, np.array([f"{client}-{number}" for number in range(count)]))


DATA: Mapping[str, Examples] = {
    "r": plane("r", 20, 0.0),
    "s": plane("s", 30, 0.3),
    "u": plane("u", 20, 2.0),
}


def optima() -> tuple[Vector, Vector]:
    """The exact optima with client u and without it."""
    return minimiser(*DATA.values()), minimiser(DATA["r"], DATA["s"])


def minimiser(*parts: Examples) -> Vector:
    """The exact optimum of the mean loss over all these examples with the L2 term, by L-BFGS to rounding."""
    whole = reduce(join, parts)

    def value_and_slope(theta: Vector) -> tuple[float, Vector]:
        loss = mean_loss(theta, whole) + WEIGHT_DECAY / 2 * float(theta @ theta)
        return loss, gradient(TASK, theta, whole) + WEIGHT_DECAY * theta

    options = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 1000}
    start = initial_parameters(TASK, 0)
    return minimize(value_and_slope, start, jac=True, method="L-BFGS-B", options=options).x


def mean_loss(theta: Vector, examples: Examples) -> float:
    """The model's mean cross entropy."""
    return float(evaluate(TASK, theta, examples).loss.mean())
