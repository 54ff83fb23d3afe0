"""Gradients and products of every model family against dense float64 matrices."""

import logging
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.unlearning.curvature.problems import (
    FAMILIES,
    TinyProblem,
    dense_gauss_newton,
    dense_gradient,
    dense_hessian,
    per_example_gradients,
    tiny_problem,
    trainable_mask,
)
from unlearning.curvature.gradients import fisher_diagonal, gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct, ProductPath

EXACT = 1e-10  # relative, float64


@cache
def problem_of(family: str) -> TinyProblem:
    return tiny_problem(family)


@cache
def dense(family: str, kind: CurvatureKind) -> NDArray[np.float64]:
    problem = problem_of(family)
    match kind:
        case CurvatureKind.HESSIAN:
            return dense_hessian(problem)
        case CurvatureKind.GAUSS_NEWTON:
            return dense_gauss_newton(problem)
        case CurvatureKind.FISHER:
            rows = per_example_gradients(problem)
            return rows.T @ rows / len(rows)


def new_product(family: str, kind: CurvatureKind, **settings) -> CurvatureProduct:
    problem = problem_of(family)
    return CurvatureProduct(problem.task, problem.theta, problem.examples, kind=kind, **settings)


product_of = cache(new_product)
"""The same for several tests, for most of the work is done when a product is made; none changes it."""


def random_vectors(dimension: int, count: int) -> NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal((count, dimension))


def distance(found: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


every_family = pytest.mark.parametrize("family", FAMILIES)
every_kind = pytest.mark.parametrize("kind", CurvatureKind)


@every_family
@every_kind
def test_a_product_is_the_dense_matrix_times_the_vector(family: str, kind: CurvatureKind) -> None:
    """Uneven micro-batches (2, 2, 1), twice over the same graphs, with no tolerance to speak of."""
    product = product_of(family, kind, micro_batch_size=2)
    for vector in random_vectors(product.dimension, 2):
        assert distance(product(vector), dense(family, kind) @ vector) < EXACT


@every_family
def test_a_gradient_is_that_of_the_whole_data_set(family: str) -> None:
    """Uneven batches are weighted by their examples."""
    problem = problem_of(family)
    found = gradient(problem.task, problem.theta, problem.examples, micro_batch_size=2)
    assert distance(found, dense_gradient(problem)) < EXACT


@every_family
def test_the_fisher_diagonal_is_the_mean_square_of_the_examples_gradients(family: str) -> None:
    """Chunks of two examples' gradients give the same as all at once."""
    problem = problem_of(family)
    expected = np.square(per_example_gradients(problem)).mean(axis=0)
    two = 2 * problem.theta.size * 8
    assert distance(fisher_diagonal(problem.task, problem.theta, problem.examples), expected) < EXACT
    chunked = fisher_diagonal(problem.task, problem.theta, problem.examples, memory_budget_bytes=two)
    assert distance(chunked, expected) < EXACT


@every_family
@pytest.mark.parametrize("kind", [CurvatureKind.GAUSS_NEWTON, CurvatureKind.FISHER])
def test_the_models_have_forward_mode(family: str, kind: CurvatureKind, caplog) -> None:
    """The slower way back twice is for models of other kinds."""
    caplog.set_level(logging.INFO, logger="unlearning.curvature.kinds")
    product = new_product(family, kind)
    product(random_vectors(product.dimension, 1)[0])
    assert "no forward-mode" not in caplog.text


def test_gauss_newton_may_be_indefinite_for_dice() -> None:
    """For segmentation it is to be damped, or negative curvature watched for; of cross entropy it has none."""
    matrix = dense("res-unet", CurvatureKind.GAUSS_NEWTON)
    smallest, vectors = np.linalg.eigh(matrix)
    product = product_of("res-unet", CurvatureKind.GAUSS_NEWTON)
    assert vectors[:, 0] @ product(vectors[:, 0]) == pytest.approx(smallest[0], rel=1e-6)
    assert smallest[0] < -1e-6 * smallest[-1]


@pytest.mark.parametrize("family", ["cnn", "vit-lite", "tied-buffers"])
@every_kind
def test_kept_and_rebuilt_graphs_give_the_same_product(family: str, kind: CurvatureKind) -> None:
    """The memory budget decides the speed and nothing else."""
    kept = product_of(family, kind, micro_batch_size=2)
    rebuilt = product_of(family, kind, micro_batch_size=2, memory_budget_bytes=1)
    assert (kept.path, rebuilt.path) == (ProductPath.KEPT, ProductPath.REBUILT)
    for vector in random_vectors(kept.dimension, 2):
        np.testing.assert_array_equal(kept(vector), rebuilt(vector))


def test_constants_of_the_model_have_zero_rows_and_are_damped() -> None:
    """Buffers: no curvature, no L2, but damping."""
    problem = problem_of("tied-buffers")
    constant = ~trainable_mask(problem)
    product = product_of("tied-buffers", CurvatureKind.HESSIAN, l2=0.5, damping=0.25)
    vector = random_vectors(product.dimension, 1)[0]
    assert constant.sum() == 6  # running mean and variance
    np.testing.assert_array_equal(product(vector)[constant], 0.25 * vector[constant])
    assert not gradient(problem.task, problem.theta, problem.examples, l2=0.5)[constant].any()
