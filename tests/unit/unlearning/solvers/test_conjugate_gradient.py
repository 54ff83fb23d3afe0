"""Conjugate gradients against dense solutions, and what they do where those do not exist."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.unlearning.solvers.matrices import random_vector, symmetric
from unlearning.errors import NumericalError
from unlearning.solvers.conjugate_gradient import conjugate_gradient
from unlearning.solvers.solution import Outcome, Solution

MATRIX = symmetric(np.geomspace(0.01, 10, 30))
B = random_vector(30)


def solve(matrix=MATRIX, b=B, *, max_iterations=200, tolerance=1e-10, **settings) -> Solution:
    return conjugate_gradient(
        matrix.__matmul__, b, max_iterations=max_iterations, tolerance=tolerance, **settings
    )


def test_it_finds_the_dense_solution() -> None:
    """And reports the residual that the solution really has."""
    solution = solve(tolerance=1e-12)
    assert solution.outcome is Outcome.CONVERGED
    np.testing.assert_allclose(solution.value, np.linalg.solve(MATRIX, B), rtol=1e-8)
    assert solution.residuals[0] == pytest.approx(np.linalg.norm(B))
    assert solution.relative_residual <= 1e-12
    assert len(solution.residuals) == solution.num_products + 1 == len(solution.curvatures) + 1


@given(
    eigenvalues=st.lists(st.floats(0.1, 10), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
)
def test_it_ends_within_as_many_steps_as_dimensions(eigenvalues: list[float], seed: int) -> None:
    """The theorem of the method; the directions' curvatures lie within the spectrum."""
    matrix, b = symmetric(eigenvalues, seed), random_vector(len(eigenvalues), seed)
    solution = solve(matrix, b, max_iterations=len(b), tolerance=1e-6)
    assert solution.outcome is Outcome.CONVERGED
    assert np.linalg.norm(b - matrix @ solution.value) <= 1.01e-6 * np.linalg.norm(b)
    assert min(eigenvalues) * 0.999 <= min(solution.curvatures)
    assert max(solution.curvatures) <= max(eigenvalues) * 1.001


def test_each_step_is_the_best_one_of_its_krylov_space() -> None:
    """After k steps x minimises ½xᵀAx − bᵀx over span(b, Ab, …, A^(k−1)b)."""
    for steps in (1, 2, 5):
        krylov = np.linalg.qr(
            np.stack([np.linalg.matrix_power(MATRIX, power) @ B for power in range(steps)], axis=1)
        )[0]
        best = krylov @ np.linalg.solve(krylov.T @ MATRIX @ krylov, krylov.T @ B)
        solution = solve(max_iterations=steps, tolerance=0.0)
        assert solution.outcome is Outcome.MAX_ITERATIONS
        np.testing.assert_allclose(solution.value, best, rtol=1e-8)


def test_a_start_at_the_solution_needs_one_product() -> None:
    """The residual of a start other than zero is computed, not assumed."""
    x = np.linalg.solve(MATRIX, B)
    solution = solve(tolerance=1e-8, start=x)
    assert (solution.outcome, solution.num_products) == (Outcome.CONVERGED, 1)
    np.testing.assert_array_equal(solution.value, x)


def test_a_right_hand_side_of_zero_costs_nothing() -> None:
    """Nothing to remove, nothing to do."""
    solution = solve(b=np.zeros(30))
    assert (solution.outcome, solution.num_products, solution.relative_residual) == (Outcome.CONVERGED, 0, 0)
    assert not solution.value.any()


def test_a_good_preconditioner_gives_the_same_solution_in_fewer_steps() -> None:
    """Here: the inverse of a badly scaled diagonal that hides a mild matrix."""
    scales = np.geomspace(1, 300, 40)
    matrix = np.diag(scales) @ symmetric(np.linspace(1, 3, 40)) @ np.diag(scales)
    b = random_vector(40)
    plain = solve(matrix, b, max_iterations=1000)
    helped = solve(matrix, b, max_iterations=1000, preconditioner=lambda r: r / scales**2)
    np.testing.assert_allclose(helped.value, np.linalg.solve(matrix, b), rtol=1e-6)
    assert helped.outcome is plain.outcome is Outcome.CONVERGED
    assert helped.num_products < plain.num_products / 2


def test_the_exact_inverse_as_preconditioner_needs_one_step() -> None:
    """M⁻¹ is applied to the residual, not to the product."""
    solution = solve(tolerance=1e-8, preconditioner=np.linalg.inv(MATRIX).__matmul__)
    assert (solution.outcome, solution.num_products) == (Outcome.CONVERGED, 1)


def test_an_indefinite_preconditioner_is_a_breakdown() -> None:
    """rᵀz ≤ 0 is no length."""
    assert solve(preconditioner=np.negative).outcome is Outcome.BREAKDOWN


INDEFINITE = np.diag([4.0, 3.0, -1.0])
"""With b below, the first direction has curvature (16·4 + 4·3 − 1)/21 > 0, a later one is negative."""
TILTED = np.array([4.0, 2.0, 1.0])


def test_a_direction_whose_square_underflows_is_a_breakdown_at_the_last_iterate() -> None:
    """A small residual under a large damping, preconditioned; nothing may be divided by its length."""
    solution = solve(np.eye(3), np.full(3, 1e-100), tolerance=0.0, preconditioner=lambda r: 1e-100 * r)
    assert solution.outcome is Outcome.BREAKDOWN
    np.testing.assert_array_equal(solution.value, np.zeros(3))


def test_negative_curvature_stops_at_the_last_good_iterate() -> None:
    """The value is that after the steps before; the event is recorded where it happened."""
    stopped = solve(INDEFINITE, TILTED)
    assert stopped.outcome is Outcome.NEGATIVE_CURVATURE
    (at,) = stopped.negative_curvature_at
    assert at >= 1
    assert stopped.curvatures[at] < 0
    assert min(stopped.curvatures[:at]) > 0
    before = solve(INDEFINITE, TILTED, max_iterations=at)
    np.testing.assert_array_equal(stopped.value, before.value)
    assert len(stopped.residuals) == at + 1


def test_negative_curvature_at_once_moves_nothing() -> None:
    """From zero there is no good iterate but zero."""
    solution = solve(-np.eye(3), TILTED)
    assert (solution.outcome, solution.negative_curvature_at) == (Outcome.NEGATIVE_CURVATURE, (0,))
    assert not solution.value.any()


def test_going_on_after_negative_curvature_never_counts_as_converged() -> None:
    """Here the residual does vanish, at a saddle point."""
    solution = solve(INDEFINITE, TILTED, tolerance=1e-8, ignore_negative_curvature=True)
    np.testing.assert_allclose(solution.value, TILTED / np.diag(INDEFINITE), rtol=1e-6)
    assert solution.relative_residual <= 1e-8
    assert solution.outcome is Outcome.NEGATIVE_CURVATURE
    assert solution.negative_curvature_at


@pytest.mark.parametrize("matrix", [INDEFINITE, -np.eye(3)])
def test_a_trust_radius_takes_negative_curvature_to_the_boundary(matrix: np.ndarray) -> None:
    """Steihaug's point: on the boundary, and lower than the last good iterate."""
    solution, inside = solve(matrix, TILTED, trust_radius=3.0), solve(matrix, TILTED)

    def model(x: np.ndarray) -> float:
        return 0.5 * x @ matrix @ x - TILTED @ x

    assert solution.outcome is Outcome.NEGATIVE_CURVATURE
    assert np.linalg.norm(solution.value) == pytest.approx(3.0)
    assert model(solution.value) < model(inside.value)


def test_a_trust_radius_cuts_a_long_step_at_its_boundary() -> None:
    """And the residual is that of the point returned."""
    solution = solve(trust_radius=5.0)
    assert solution.outcome is Outcome.TRUST_RADIUS
    assert np.linalg.norm(solution.value) == pytest.approx(5.0)
    assert solution.residuals[-1] == pytest.approx(np.linalg.norm(B - MATRIX @ solution.value))


def test_a_singular_direction_is_a_breakdown() -> None:
    """Zero curvature to rounding is neither positive nor negative."""
    solution = solve(np.diag([1.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0]))
    assert solution.outcome is Outcome.BREAKDOWN
    assert not solution.value.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_product_that_is_not_finite_is_a_breakdown_at_the_last_good_iterate(bad: float) -> None:
    """Numbers do not raise."""
    calls = []

    def product(vector: np.ndarray) -> np.ndarray:
        calls.append(vector)
        return MATRIX @ vector if len(calls) < 4 else np.full(30, bad)

    solution = conjugate_gradient(product, B, max_iterations=99, tolerance=1e-10)
    before = solve(max_iterations=3)
    assert (solution.outcome, solution.num_products) == (Outcome.BREAKDOWN, 4)
    np.testing.assert_array_equal(solution.value, before.value)


def test_a_right_hand_side_that_is_not_finite_is_a_breakdown() -> None:
    """Before any product is asked for."""
    solution = solve(np.eye(2), np.array([1, np.nan]))
    assert (solution.outcome, solution.num_products) == (Outcome.BREAKDOWN, 0)


def test_single_precision_vectors_are_summed_in_double_precision() -> None:
    """A long vector of equal entries: its float32 running sum would be off in the fourth digit."""
    size = 3_000_000
    b = np.full(size, 0.1, dtype=np.float32)
    solution = conjugate_gradient(lambda v: 2 * v, b, max_iterations=3, tolerance=1e-6)
    assert solution.value.dtype == np.float32
    assert solution.residuals[0] == pytest.approx(np.sqrt(size) * float(np.float32(0.1)), rel=1e-12)
    np.testing.assert_allclose(solution.value, 0.05, rtol=1e-6)


def test_arguments_are_not_changed() -> None:
    """Right-hand side and start belong to the caller."""
    b, start = B.copy(), random_vector(30, seed=7)
    copies = b.copy(), start.copy()
    solve(b=b, start=start, max_iterations=5, tolerance=0.0)
    np.testing.assert_array_equal(b, copies[0])
    np.testing.assert_array_equal(start, copies[1])


def test_a_product_of_another_size_is_refused() -> None:
    """A mistake of the caller's, not a matter of numbers: numpy would broadcast it."""
    with pytest.raises(NumericalError):
        conjugate_gradient(lambda v: v[:1], np.ones(3), max_iterations=2, tolerance=0.1)


@pytest.mark.parametrize("wrong", [{"max_iterations": -1}, {"tolerance": 1.0}, {"trust_radius": 0.0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    """Before any work is done."""
    with pytest.raises(NumericalError):
        solve(**wrong)
