"""The infinitesimal jackknife, factorised before any deletion; symbols as in `unlearning.certified.newton_step`."""

import numpy as np
import scipy  # its parts are imported at their first use

from unlearning.certified.newton_step import InfluenceSettings, damped_curvature, summed_gradient
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
