"""Derivatives that are recorded after many products: they may change the time, never a bit of an answer."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import linearize

from tests.unit.unlearning.curvature.problems import TinyProblem, tiny_problem
from unlearning.curvature import products, recorded
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import RECORD_AFTER, CurvatureProduct


@pytest.fixture(autouse=True)
def _small_graphs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The problems here are tiny."""
    monkeypatch.setattr(products, "RECORD_FROM_BYTES", 0)


def product_of(problem: TinyProblem, kind: CurvatureKind, **settings: int) -> CurvatureProduct:
    """In two micro-batches of unequal size."""
    return CurvatureProduct(
        problem.task, problem.theta, problem.examples, kind=kind, micro_batch_size=3, **settings
    )


def used(product: CurvatureProduct, times: int = RECORD_AFTER) -> CurvatureProduct:
    """The same product after so many vectors."""
    generator = np.random.default_rng(0)
    for _ in range(times):
        product(generator.standard_normal(product.dimension))
    return product


@pytest.mark.parametrize("kind", [CurvatureKind.GAUSS_NEWTON, CurvatureKind.FISHER])
def test_a_recorded_derivative_gives_forward_mode_s_answer_to_the_bit(kind: CurvatureKind) -> None:
    """For another vector than the one it was checked with, so a resumed solve repeats itself."""
    problem = tiny_problem("cnn")
    product = used(product_of(problem, kind))
    assert product.num_recorded == product.num_micro_batches == 2
    vector = np.random.default_rng(1).standard_normal(product.dimension)
    np.testing.assert_array_equal(product(vector), product_of(problem, kind)(vector))


def test_a_recording_that_rounds_differently_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit in the last place of one entry is enough."""

    def off_by_one_unit(function: Callable[..., Tensor], *at: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        value, derivative = linearize(function, *at)

        def rounded(*parts: Tensor) -> Tensor:
            pushed = derivative(*parts)
            pushed[0, 0] = torch.nextafter(pushed[0, 0], torch.tensor(torch.inf, dtype=pushed.dtype))
            return pushed

        return value, rounded

    monkeypatch.setattr(recorded, "linearize", off_by_one_unit)
    problem = tiny_problem("cnn")
    product = used(product_of(problem, CurvatureKind.GAUSS_NEWTON))
    assert product.num_recorded == 0
    vector = np.random.default_rng(1).standard_normal(product.dimension)
    fresh = product_of(problem, CurvatureKind.GAUSS_NEWTON)
    np.testing.assert_array_equal(product(vector), fresh(vector))


def test_a_model_that_is_recorded_in_pieces_keeps_its_answer_to_the_bit() -> None:
    """GroupNorm is recorded in pieces; whether they round differently is the processor's affair."""
    problem = tiny_problem("small-cnn")
    product = used(product_of(problem, CurvatureKind.GAUSS_NEWTON))
    vector = np.random.default_rng(1).standard_normal(product.dimension)
    fresh = product_of(problem, CurvatureKind.GAUSS_NEWTON)
    np.testing.assert_array_equal(product(vector), fresh(vector))


@pytest.mark.parametrize(
    ("kind", "times"),
    [(CurvatureKind.GAUSS_NEWTON, RECORD_AFTER - 1), (CurvatureKind.HESSIAN, RECORD_AFTER)],
    ids=["before-it-pays", "no-forward-derivative"],
)
def test_nothing_is_recorded_where_it_is_of_no_use(kind: CurvatureKind, times: int) -> None:
    """One product fewer than the threshold; and a Hessian, which goes backward twice."""
    assert used(product_of(tiny_problem("mlp"), kind), times).num_recorded == 0


def test_a_small_graph_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A logistic regression's products are over before a recording would be made."""
    monkeypatch.undo()
    assert used(product_of(tiny_problem("mlp"), CurvatureKind.GAUSS_NEWTON)).num_recorded == 0


def test_where_memory_is_short_nothing_is_recorded() -> None:
    """A budget for the graphs of both micro-batches and for no recording."""
    problem = tiny_problem("mlp")
    budgets = range(500, 20_000, 100)
    both = next(
        budget
        for budget in budgets
        if product_of(problem, CurvatureKind.GAUSS_NEWTON, memory_budget_bytes=budget).path == "kept"
    )
    tight = used(product_of(problem, CurvatureKind.GAUSS_NEWTON, memory_budget_bytes=both))
    assert (tight.path, tight.num_recorded) == ("kept", 0)


def test_released_graphs_take_their_recordings_with_them() -> None:
    """And the next product builds everything anew, with the same answer."""
    product = used(product_of(tiny_problem("mlp"), CurvatureKind.GAUSS_NEWTON))
    vector = np.random.default_rng(1).standard_normal(product.dimension)
    before = product(vector)
    assert product.num_recorded == 2
    product.release()
    np.testing.assert_array_equal(product(vector), before)
    assert product.num_recorded == 0
