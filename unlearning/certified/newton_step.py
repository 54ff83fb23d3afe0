"""Removal by influence: the Newton step, and with all examples' curvature the infinitesimal jackknife.

    w    the model, a minimiser of the mean loss F over n examples; ℓ with its L2 term μ/2 ‖w‖²
    U    the m forgotten examples           H    ∇²F(w)          H_U   mean Hessian over U
    γ    damping (published: 0.01)

Newton step (NS)                 w + (n−m)⁻¹ (H_{−U} + γI)⁻¹ Σ_U ∇ℓ_u,   H_{−U} = (nH − mH_U)/(n−m)
infinitesimal jackknife (IJ)     w + n⁻¹ (H + γI)⁻¹ Σ_U ∇ℓ_u

Gradients are sums over U and include their L2 term. H_{−U} is the mean Hessian over the retained, and is
computed as that. At a w that is no minimum both keep what training has left undone; federated Newton-CG does not.

Source: Sekhari et al., Remember What You Want to Forget, for NS; Suriyakumar & Wilson, Algorithms that
Approximate Data Removal, for IJ; Qiao et al., Hessian-Free Online Certified Unlearning, Eqs. 15 and 16.
"""

from dataclasses import dataclass

import numpy as np

from unlearning.curvature.gradients import gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.parameters import Vector
from unlearning.solvers.conjugate_gradient import conjugate_gradient
from unlearning.solvers.direct import direct_solve
from unlearning.solvers.solution import Solution
from unlearning.tasks.task import Examples, Task

PUBLISHED_DAMPING = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceSettings:
    """How the system is set up and solved.

    l2: training's weight decay, μ.
    dense_up_to: the largest d whose matrix is built and factorised; above, conjugate gradients.
    max_iterations, tolerance: of the conjugate gradients.
    """

    l2: float = 0.0
    damping: float = PUBLISHED_DAMPING
    kind: CurvatureKind = CurvatureKind.HESSIAN
    dense_up_to: int = 1000
    max_iterations: int = 200
    tolerance: float = 1e-8


@dataclass(frozen=True, slots=True)
class Step:
    """The unlearned model (d,), and how the solve went."""

    parameters: Vector
    solution: Solution


def newton_step(
    task: Task, parameters: Vector, retained: Examples, forgotten: Examples, settings: InfluenceSettings
) -> Step:
    """Compute w + (n−m)⁻¹ (H_{−U} + γI)⁻¹ Σ_U ∇ℓ_u, with H_{−U} over the `retained`; shapes (d,).

    With all examples in the place of the `retained`, the forgotten among them, it is the infinitesimal jackknife.

    Raises:
        DataError: nothing is retained or nothing forgotten.
        NumericalError: the model has no such curvature.
        UpdateRefused: `parameters` does not have the model's length.
    """
    product = damped_curvature(task, parameters, retained, settings)
    total = summed_gradient(task, parameters, forgotten, settings.l2)
    right = (total / len(retained)).astype(parameters.dtype)
    if product.dimension <= settings.dense_up_to:
        solution = direct_solve(product, right)
    else:
        solution = conjugate_gradient(
            product, right, max_iterations=settings.max_iterations, tolerance=settings.tolerance
        )
    moved = (parameters.astype(np.float64) + solution.value.astype(np.float64)).astype(parameters.dtype)
    return Step(moved, solution)


def damped_curvature(
    task: Task, parameters: Vector, basis: Examples, settings: InfluenceSettings
) -> CurvatureProduct:
    """Return the product with the mean curvature over `basis` and the damping."""
    return CurvatureProduct(
        task, parameters, basis, kind=settings.kind, l2=settings.l2, damping=settings.damping
    )


def summed_gradient(task: Task, parameters: Vector, forgotten: Examples, l2: float) -> Vector:
    """Compute Σ_U (∇ℓ_u + μw), float64."""
    mean = gradient(task, parameters, forgotten, l2=l2)
    return len(forgotten) * mean.astype(np.float64)
