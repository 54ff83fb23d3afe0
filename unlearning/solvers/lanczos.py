"""The ends of a symmetric matrix's spectrum from a few products.

Legend: q_k orthonormal vectors, α_k = q_kᵀAq_k and β_k the diagonal and off-diagonal of QᵀAQ.

Source: Lanczos, An Iteration Method for the Solution of the Eigenvalue Problem of Linear Differential and
Integral Operators; Parlett, The Symmetric Eigenvalue Problem, ch. 13, for full reorthogonalisation.
"""

from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported at their first use

from unlearning.errors import NumericalError
from unlearning.parameters import Vector, accumulate, dot, norm
from unlearning.solvers.solution import Product


class Extremes(NamedTuple):
    """Estimates of the smallest and largest eigenvalue; both lie within the true spectrum."""

    smallest: float
    largest: float

    @property
    def condition_number(self) -> float:
        """largest/smallest, at most the true one; infinite where the smallest is not positive."""
        return self.largest / self.smallest if self.smallest > 0 else float("inf")


def lanczos_extremes(
    product: Product, dimension: int, *, steps: int = 20, generator: np.random.Generator
) -> Extremes:
    """Return the ends of the spectrum of A from at most `steps` products, started at a random vector.

    20 steps find an isolated smallest eigenvalue to about three digits, the end of a cluster later. Exact, up to
    rounding, from `dimension` steps on. Holds `steps` vectors (d,) in the products' dtype, and two more; lengths and
    inner products are summed in float64.

    Raises:
        NumericalError: `dimension` or `steps` is below 1, or a product is not finite.
    """
    if dimension < 1 or steps < 1:
        raise NumericalError(
            f"Lanczos needs a dimension and steps of 1 or more, got {dimension} and {steps}."
        )
    steps = min(steps, dimension)
    direction: Vector = generator.standard_normal(dimension)
    direction /= norm(direction)
    basis: list[Vector] = []
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    scale = 0.0
    while True:
        image = np.array(product(direction))
        if not np.isfinite(image).all():
            raise NumericalError(
                "A product in the Lanczos iteration is not finite. Check the model's values."
            )
        if not basis:
            direction = direction.astype(image.dtype)
        basis.append(direction)
        scale = max(scale, norm(image))
        diagonal.append(dot(direction, image))
        if len(basis) == steps:
            break
        # Twice, since one pass leaves rounding of the size of what it removes (Parlett, 6.9).
        for known in (*basis, *basis):
            accumulate(image, -dot(known, image), known)
        length = norm(image)
        # An invariant subspace: a random start meets every distinct eigenvalue, so nothing is missing.
        if length <= dimension * np.finfo(float).eps * scale:
            break
        off_diagonal.append(length)
        image /= length
        direction = image
    eigenvalues = scipy.linalg.eigvalsh_tridiagonal(np.array(diagonal), np.array(off_diagonal))
    return Extremes(float(eigenvalues[0]), float(eigenvalues[-1]))
