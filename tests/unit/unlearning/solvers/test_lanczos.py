"""The ends of the spectrum against dense eigenvalues."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.unlearning.solvers.matrices import symmetric
from unlearning.errors import NumericalError
from unlearning.solvers.lanczos import Extremes, lanczos_extremes


def extremes(matrix: np.ndarray, seed: int = 0, **settings) -> Extremes:
    generator = np.random.default_rng(seed)
    return lanczos_extremes(matrix.__matmul__, len(matrix), generator=generator, **settings)


def test_twenty_steps_find_an_isolated_negative_eigenvalue() -> None:
    """To three digits among 300, as networks' Hessians have them."""
    eigenvalues = np.concatenate([[-1.76], np.random.default_rng(0).uniform(-0.2, 1.0, 298), [11.0]])
    found = extremes(symmetric(eigenvalues))
    assert found.smallest == pytest.approx(-1.76, rel=1e-3)
    assert found.largest == pytest.approx(11.0, rel=1e-6)


# Zero instead of what has no square: a norm of 1e-180 is lost to underflow.
EIGENVALUES = st.floats(-5, 5).map(lambda value: value if abs(value) > 1e-100 else 0.0)


@given(
    eigenvalues=st.lists(EIGENVALUES, min_size=1, max_size=12),
    seed=st.integers(0, 2**32 - 1),
)
def test_as_many_steps_as_dimensions_are_exact(eigenvalues: list[float], seed: int) -> None:
    """Also with repeated eigenvalues, zero matrices and one dimension."""
    matrix = symmetric(eigenvalues, seed)
    found = extremes(matrix, seed, steps=20)
    dense = np.linalg.eigvalsh(matrix)
    # where steps end early because the rest is tiny, what is left out is tiny beside the largest
    np.testing.assert_allclose(found, (dense[0], dense[-1]), atol=1e-6 * max(1e-300, np.abs(dense).max()))


@pytest.mark.parametrize("eigenvalue", [0.0, 3.0])
def test_a_multiple_of_the_identity_ends_after_one_product(eigenvalue: float) -> None:
    """The first vector spans an invariant subspace, and nothing may be divided by its zero remainder."""
    calls: list[np.ndarray] = []

    def product(vector: np.ndarray) -> np.ndarray:
        calls.append(vector)
        return eigenvalue * vector

    found = lanczos_extremes(product, 6, generator=np.random.default_rng(0))
    np.testing.assert_allclose(found, (eigenvalue, eigenvalue), rtol=1e-12)
    assert len(calls) == 1


def test_orthogonality_is_kept_over_many_steps() -> None:
    """Without reorthogonalisation copies of the largest eigenvalue push the smallest out."""
    eigenvalues = np.geomspace(1e-6, 1e6, 60)
    found = extremes(symmetric(eigenvalues), steps=60)
    assert found.smallest == pytest.approx(1e-6, abs=1e-8)
    assert found.largest == pytest.approx(1e6, rel=1e-10)


def test_estimates_lie_within_the_spectrum() -> None:
    """So the condition number is a lower bound."""
    eigenvalues = np.linspace(1, 100, 200)
    found = extremes(symmetric(eigenvalues), steps=8)
    assert 1 < found.smallest < 10
    assert 90 < found.largest < 100
    assert found.condition_number == found.largest / found.smallest < 100


def test_the_condition_number_of_an_indefinite_matrix_is_infinite() -> None:
    """No bound may be built on it."""
    assert extremes(symmetric([-1.0, 2.0])).condition_number == np.inf


@pytest.mark.parametrize(
    ("matrix", "steps"),
    [(np.full((3, 3), np.nan), 20), (np.eye(3), 0)],
)
def test_where_there_is_no_estimate_it_is_refused(matrix: np.ndarray, steps: int) -> None:
    """Instead of an error about empty arrays."""
    with pytest.raises(NumericalError):
        extremes(matrix, steps=steps)
