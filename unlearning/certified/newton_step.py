"""Removal by influence: the Newton step and the infinitesimal jackknife, the baselines of HF-online.

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
import scipy  # its parts are imported at their first use

from unlearning.curvature import CurvatureKind, CurvatureProduct, gradient
from unlearning.errors import NumericalError
from unlearning.parameters import Vector
from unlearning.solvers import Solution, conjugate_gradient, direct_solve
from unlearning.solvers.direct import dense_matrix
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

    Raises:
        DataError: nothing is retained or nothing forgotten.
        NumericalError: the model has no such curvature.
        UpdateRefused: `parameters` does not have the model's length.
    """
    return _step(task, parameters, retained, forgotten, settings, divisor=len(retained))


def infinitesimal_jackknife(
    task: Task, parameters: Vector, examples: Examples, forgotten: Examples, settings: InfluenceSettings
) -> Step:
    """Compute w + n⁻¹ (H + γI)⁻¹ Σ_U ∇ℓ_u, with H over all `examples`, the forgotten among them; shapes (d,).

    Raises:
        DataError: there are no examples or nothing is forgotten.
        NumericalError: the model has no such curvature.
        UpdateRefused: `parameters` does not have the model's length.
    """
    return _step(task, parameters, examples, forgotten, settings, divisor=len(examples))


class PrecomputedJackknife:
    """IJ with H + γI factorised beforehand: a deletion costs one gradient over U and two triangular solves.

    Holds d² float64 numbers, for d up to `solvers.direct.MAX_DIMENSION`.

    Raises:
        DataError: there are no examples.
        NumericalError: d is too large, or H + γI is not positive definite.
        UpdateRefused: `parameters` does not have the model's length.
    """

    def __init__(
        self, task: Task, parameters: Vector, examples: Examples, settings: InfluenceSettings
    ) -> None:
        self._task, self._parameters, self._settings = task, parameters, settings
        self._num_examples = len(examples)
        product = _product(task, parameters, examples, settings)
        try:
            self._factor = scipy.linalg.cho_factor(dense_matrix(product, product.dimension), lower=True)
        except np.linalg.LinAlgError as exc:
            raise NumericalError(
                "The damped Hessian is not positive definite, so it cannot be factorised. Raise the damping, "
                "or use the Gauss-Newton matrix."
            ) from exc

    @property
    def size_bytes(self) -> int:
        """What the factor holds."""
        return int(self._factor[0].nbytes)

    def step(self, forgotten: Examples) -> Vector:
        """Return the model (d,) without the forgotten.

        Raises:
            DataError: nothing is forgotten.
        """
        total = _summed_gradient(self._task, self._parameters, forgotten, self._settings.l2)
        move = scipy.linalg.cho_solve(self._factor, total / self._num_examples)
        moved: Vector = (self._parameters.astype(np.float64) + move).astype(self._parameters.dtype)
        return moved


def _step(
    task: Task,
    parameters: Vector,
    basis: Examples,
    forgotten: Examples,
    settings: InfluenceSettings,
    *,
    divisor: int,
) -> Step:
    """Return the move by the curvature over `basis`."""
    product = _product(task, parameters, basis, settings)
    right = (_summed_gradient(task, parameters, forgotten, settings.l2) / divisor).astype(parameters.dtype)
    if product.dimension <= settings.dense_up_to:
        solution = direct_solve(product, right)
    else:
        solution = conjugate_gradient(
            product, right, max_iterations=settings.max_iterations, tolerance=settings.tolerance
        )
    moved = (parameters.astype(np.float64) + solution.value.astype(np.float64)).astype(parameters.dtype)
    return Step(moved, solution)


def _product(
    task: Task, parameters: Vector, basis: Examples, settings: InfluenceSettings
) -> CurvatureProduct:
    return CurvatureProduct(
        task, parameters, basis, kind=settings.kind, l2=settings.l2, damping=settings.damping
    )


def _summed_gradient(task: Task, parameters: Vector, forgotten: Examples, l2: float) -> Vector:
    """Compute Σ_U (∇ℓ_u + μw), float64."""
    mean = gradient(task, parameters, forgotten, l2=l2)
    return len(forgotten) * mean.astype(np.float64)
