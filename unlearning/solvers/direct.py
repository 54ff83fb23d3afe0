"""A x = b by the whole matrix, for small dimensions."""

import numpy as np
import scipy  # its parts are imported at their first use
from numpy.typing import NDArray

from unlearning.errors import NumericalError
from unlearning.parameters import Vector, norm
from unlearning.solvers.solution import Outcome, Product, Solution

MAX_DIMENSION = 5_000
"""The matrix of this number of columns takes 200 MB in float64."""


def dense_matrix(product: Product, dimension: int) -> NDArray[np.float64]:
    """Return the matrix (d, d) by d products with unit vectors, its two triangles averaged.

    Raises:
        NumericalError: the dimension is above `MAX_DIMENSION`.
    """
    if dimension > MAX_DIMENSION:
        raise NumericalError(
            f"A dense matrix of {dimension:,} rows is too large (at most {MAX_DIMENSION:,}). "
            "Use conjugate gradients."
        )
    matrix = np.empty((dimension, dimension))
    unit = np.zeros(dimension)
    for column in range(dimension):
        unit[column] = 1.0
        matrix[:, column] = product(unit)
        unit[column] = 0.0
    return (matrix + matrix.T) / 2


def direct_solve(product: Product, right_hand_side: Vector) -> Solution:
    """Solve A x = b in float64 by d products and a Cholesky factorisation; shapes (d,).

    Where A is not positive definite its eigenvalues decide: the outcome is negative_curvature where one
    is negative and breakdown where the smallest is zero to rounding. The value is then the shortest x
    with the least residual, which for a negative eigenvalue is a saddle point and no minimum.

    Raises:
        NumericalError: d is above `MAX_DIMENSION`.
    """
    b = right_hand_side.astype(np.float64)
    matrix = dense_matrix(product, b.size)
    if np.isfinite(matrix).all() and np.isfinite(b).all():
        value, outcome, eigenvalues = _solve(matrix, b)
    else:
        value, outcome, eigenvalues = np.zeros_like(b), Outcome.BREAKDOWN, ()
    return Solution(
        value=value.astype(right_hand_side.dtype),
        outcome=outcome,
        residuals=(norm(b - matrix @ value),),
        right_hand_side_norm=norm(b),
        num_products=b.size,
        curvatures=eigenvalues,
        negative_curvature_at=tuple(index for index, one in enumerate(eigenvalues) if one < 0)
        if outcome is Outcome.NEGATIVE_CURVATURE
        else (),
    )


def _solve(
    matrix: NDArray[np.float64], b: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Outcome, tuple[float, ...]]:
    """Return the value, the outcome and, where they had to be computed, the eigenvalues."""
    try:
        factor = scipy.linalg.cho_factor(matrix, lower=True)
    except np.linalg.LinAlgError:
        pass
    else:
        pivots = np.diagonal(factor[0])
        # A singular matrix may pass by rounding; its pivots then span the whole precision.
        if (pivots.min() / pivots.max()) ** 2 > b.size * np.finfo(float).eps:
            return scipy.linalg.cho_solve(factor, b), Outcome.CONVERGED, ()
    eigenvalues, vectors = np.linalg.eigh(matrix)
    rounding = b.size * np.finfo(float).eps * np.abs(eigenvalues).max()
    usable = np.abs(eigenvalues) > rounding
    value: NDArray[np.float64] = vectors[:, usable] @ ((vectors[:, usable].T @ b) / eigenvalues[usable])
    outcome = Outcome.NEGATIVE_CURVATURE if eigenvalues[0] < -rounding else Outcome.BREAKDOWN
    return value, outcome, tuple(eigenvalues.tolist())
