"""Lanczos in float32: its room is that of its basis, and its answers are those of float64."""

import tracemalloc

import numpy as np
import pytest

from tests.unit.unlearning.solvers.matrices import symmetric
from unlearning.solvers.lanczos import lanczos_extremes

LONG = 1_000_000
DIAGONAL = np.linspace(1, 9, LONG, dtype=np.float32)
STEPS = 10


def product(vector: np.ndarray) -> np.ndarray:
    return (DIAGONAL * vector).astype(np.float32, copy=False)


def test_lanczos_holds_its_basis_in_the_products_dtype() -> None:
    """The random start is drawn in float64, while the basis is empty."""
    draws = np.random.default_rng(0)
    tracemalloc.start()
    try:
        lanczos_extremes(product, LONG, steps=STEPS, generator=draws)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < (STEPS + 4) * DIAGONAL.nbytes


def test_twenty_steps_of_float32_find_an_isolated_negative_eigenvalue() -> None:
    """As of float64, to what products in float32 can tell."""
    eigenvalues = [-1.76, *np.random.default_rng(0).uniform(-0.2, 1.0, 298), 11.0]
    matrix = symmetric(eigenvalues).astype(np.float32)
    found = lanczos_extremes(
        lambda vector: matrix @ vector.astype(np.float32), 300, generator=np.random.default_rng(0)
    )
    assert found.smallest == pytest.approx(-1.76, rel=1e-3)
    assert found.largest == pytest.approx(11.0, rel=1e-5)


def test_orthogonality_is_kept_in_float32_too() -> None:
    """As many steps as dimensions: without reorthogonalisation copies of the largest push the smallest out."""
    eigenvalues = list(np.geomspace(1e-1, 1e3, 60))
    matrix = symmetric(eigenvalues).astype(np.float32)
    found = lanczos_extremes(
        lambda vector: matrix @ vector.astype(np.float32), 60, steps=60, generator=np.random.default_rng(1)
    )
    np.testing.assert_allclose(found, np.linalg.eigvalsh(matrix.astype(float))[[0, -1]], atol=1e-3)
