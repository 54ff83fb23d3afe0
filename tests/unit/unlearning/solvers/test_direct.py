"""The direct solver, and what it says of matrices that are not positive definite."""

import numpy as np
import pytest

from tests.unit.unlearning.solvers.matrices import random_vector, symmetric
from unlearning.errors import NumericalError
from unlearning.solvers.direct import MAX_DIMENSION, dense_matrix, direct_solve
from unlearning.solvers.solution import Outcome


def test_it_solves_a_positive_definite_system() -> None:
    """By as many products as dimensions."""
    matrix, b = symmetric(np.geomspace(1e-3, 10, 12)), random_vector(12)
    solution = direct_solve(matrix.__matmul__, b)
    assert (solution.outcome, solution.num_products) == (Outcome.CONVERGED, 12)
    np.testing.assert_allclose(solution.value, np.linalg.solve(matrix, b), rtol=1e-9)
    assert solution.relative_residual < 1e-12


def test_the_dense_matrix_is_that_of_the_products() -> None:
    """Columns are not rows, and rounding's asymmetry is averaged away."""
    matrix = symmetric([1.0, 2.0, 3.0])
    corner = np.outer([1.0, 0, 0], [0, 1.0, 0])
    skewed = matrix + 2e-9 * corner
    found = dense_matrix(skewed.__matmul__, 3)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_allclose(found, matrix + 1e-9 * (corner + corner.T), rtol=1e-14)


def test_an_indefinite_matrix_is_named_and_solved() -> None:
    """The value is the saddle point, and the outcome says so; the eigenvalues are its curvatures."""
    eigenvalues = [-0.5, -0.1, 1.0, 2.0]
    matrix, b = symmetric(eigenvalues), random_vector(4)
    solution = direct_solve(matrix.__matmul__, b)
    assert solution.outcome is Outcome.NEGATIVE_CURVATURE
    assert solution.negative_curvature_at == (0, 1)
    np.testing.assert_allclose(solution.curvatures, eigenvalues)
    np.testing.assert_allclose(matrix @ solution.value, b, rtol=1e-10)


@pytest.mark.parametrize("rounding", [0.0, 1e-17])
def test_a_singular_matrix_is_a_breakdown_with_the_shortest_solution(rounding: float) -> None:
    """Also where rounding lets Cholesky pass."""
    matrix, b = symmetric([0.0, 1.0, 2.0]) + rounding * np.eye(3), random_vector(3)
    solution = direct_solve(matrix.__matmul__, b)
    assert solution.outcome is Outcome.BREAKDOWN
    np.testing.assert_allclose(solution.value, np.linalg.pinv(matrix, rcond=1e-12) @ b, rtol=1e-9)
    assert solution.relative_residual > 1e-3


def test_a_matrix_that_is_not_finite_is_a_breakdown() -> None:
    """Numbers do not raise."""
    solution = direct_solve(lambda v: v * np.nan, np.ones(2))
    assert solution.outcome is Outcome.BREAKDOWN
    assert not solution.value.any()


def test_a_large_dimension_is_refused_before_any_product() -> None:
    """Instead of filling the memory."""
    with pytest.raises(NumericalError):
        direct_solve(lambda _: pytest.fail("a product was asked for"), np.ones(MAX_DIMENSION + 1))
