"""A convex federation on which retraining is exact: logistic regression with an L2 term, in float64.

Three clients of two overlapping classes in the plane; client u's are turned, so that it pulls the model its own way.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import nn

from unlearning.curvature.gradients import gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.evaluation import evaluate
from unlearning.parameters import Vector
from unlearning.solvers.direct import dense_matrix
from unlearning.tasks.losses import classification_measures, cross_entropy
from unlearning.tasks.task import Examples, Task, join
from unlearning.training import TrainingSettings, initial_parameters

WEIGHT_DECAY = 0.05
TASK = Task(
    name="two classes in the plane",
    num_classes=2,
    score_name="accuracy",
    build_model=lambda: nn.Linear(2, 2),
    loss=cross_entropy,
    per_example=classification_measures,
    dtype=torch.float64,
)
TRAINING = TrainingSettings(learning_rate=0.5, batch_size=1000, weight_decay=WEIGHT_DECAY)


def plane(client: str, count: int, turned: float) -> Examples:
    """Return two classes along an axis turned by this number of radians."""
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
    """Compute the exact optima with client u and without it."""
    return optimum_of(*DATA.values()), optimum_of(DATA["r"], DATA["s"])


def optimum_of(*parts: Examples) -> Vector:
    """Compute the exact optimum of this federation's objective over all these examples."""
    return minimiser(TASK, reduce(join, parts), WEIGHT_DECAY, initial_parameters(TASK, 0))


def mean_loss(theta: Vector, examples: Examples) -> float:
    """Compute the model's mean cross entropy."""
    return float(evaluate(TASK, theta, examples).loss.mean())


def minimiser(task: Task, examples: Examples, l2: float, start: Vector) -> Vector:
    """Return the parameters at which the L2-regularised mean loss of a convex task is least; ‖∇‖ below 1e-10."""

    def objective(theta: Vector) -> tuple[float, Vector]:
        loss = float(evaluate(task, theta, examples).loss.mean())
        return loss + l2 / 2 * float(theta @ theta), gradient(task, theta, examples, l2=l2)

    found: Vector = minimize(
        objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "gtol": 1e-7, "ftol": 0}
    ).x
    for _ in range(5):  # Newton steps take it from there to rounding
        slope = gradient(task, found, examples, l2=l2)
        if np.linalg.norm(slope) < 1e-12:
            break
        found = found - np.linalg.solve(hessian(task, found, examples, l2), slope)
    assert np.linalg.norm(gradient(task, found, examples, l2=l2)) < 1e-10
    return found


def hessian(task: Task, theta: Vector, examples: Examples, l2: float) -> NDArray[Any]:
    """Compute the dense Hessian (d, d) of the L2-regularised mean loss."""
    product = CurvatureProduct(task, theta, examples, kind=CurvatureKind.HESSIAN, l2=l2)
    return dense_matrix(product, product.dimension)
