"""The infinitesimal jackknife, factorised before any deletion, and a bound on its distance from retraining.

Symbols are those of `unlearning.certified.newton_step` and `unlearning.certified.sensitivity`.
"""

import numpy as np
import scipy  # its parts are imported at their first use

from unlearning.certified.newton_step import InfluenceSettings, damped_curvature, summed_gradient
from unlearning.certified.sensitivity import EXACT, Constants, Inexactness, Sensitivity, newton_step_bound
from unlearning.errors import NumericalError
from unlearning.parameters import Vector
from unlearning.solvers.direct import dense_matrix
from unlearning.tasks.task import Examples, Task


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
        product = damped_curvature(task, parameters, examples, settings)
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
        total = summed_gradient(self._task, self._parameters, forgotten, self._settings.l2)
        move = scipy.linalg.cho_solve(self._factor, total / self._num_examples)
        moved: Vector = (self._parameters.astype(np.float64) + move).astype(self._parameters.dtype)
        return moved


def jackknife_bound(
    constants: Constants, *, num_examples: int, num_deleted: int, inexactness: Inexactness = EXACT
) -> Sensitivity:
    """Compute Δ of the infinitesimal jackknife: that of the Newton step and m² L S/(λ² n (n−m)) more.

    (nH)⁻¹ − (nH − mH_U)⁻¹ = −(nH)⁻¹ mH_U (nH − mH_U)⁻¹, applied to a sum of norm at most mL.

    Raises:
        NumericalError: not 0 ≤ m < n.
    """
    n, m = num_examples, num_deleted
    newton = newton_step_bound(constants, num_examples=n, num_deleted=m, inexactness=inexactness)
    stale = m**2 * constants.gradient_bound * constants.smoothness
    stale /= constants.strong_convexity**2 * n * (n - m)
    return Sensitivity(
        value=newton.value + stale,
        is_bound=True,
        source="bound of the infinitesimal jackknife",
        constants=constants,
    )
