"""Random symmetric matrices with a chosen spectrum."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def symmetric(eigenvalues: Sequence[float], seed: int = 0) -> NDArray[np.float64]:
    """A dense matrix with these eigenvalues and random eigenvectors."""
    size = len(eigenvalues)
    vectors, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))
    return vectors @ np.diag(eigenvalues) @ vectors.T


def random_vector(size: int, seed: int = 1) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(size)
