"""Vectors carried along training against exact retraining with the same batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.certified.online import (
    BatchStep,
    OnlineSettings,
    OnlineTrained,
    fixed_batches,
    repair,
    retrained_on_batches,
    train_online,
)
from benchmarks.certified.unit_vectors import UnitVectors, forgotten_by_addition
from tests.unit.unlearning.certified.problems import DIMENSION, LOGISTIC, QUADRATIC, blobs, with_copies
from unlearning.certified.sensitivity import Weighting
from unlearning.certified.tangents import BlockProducts
from unlearning.curvature.gradients import gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.errors import ConfigurationError, DataError
from unlearning.parameters import Vector
from unlearning.solvers.direct import dense_matrix
from unlearning.tasks import TaskSettings, load_site, make_task
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, initial_parameters, train

L2 = 0.05
TRAINING = TrainingSettings(epochs=4, batch_size=8, learning_rate=0.2, weight_decay=L2, seed=2)
FIXED = OnlineSettings(l2=L2, weighting=Weighting.FIXED)
RENORMALISED = OnlineSettings(l2=L2)
BOTH = pytest.mark.parametrize("settings", [FIXED, RENORMALISED], ids=["fixed", "renormalised"])


def carried(
    settings: OnlineSettings,
    units: dict[str, list[int]],
    *,
    task: Task = LOGISTIC,
    examples: Examples | None = None,
    training: TrainingSettings = TRAINING,
) -> tuple[OnlineTrained, Vector, tuple[BatchStep, ...], Examples]:
    examples = examples or blobs()
    plan = fixed_batches(len(examples), training)
    start = initial_parameters(task, 0)
    positions = {unit: np.array(where, dtype=np.intp) for unit, where in units.items()}
    return train_online(task, start, examples, plan, positions, settings), start, plan, examples


def error_of_removal(settings: OnlineSettings, num_copies: int) -> tuple[float, float]:
    """‖w + a_u − w_retrained‖ and ‖w − w_retrained‖ for a unit of so many copies of one example."""
    training = replace(TRAINING, batch_size=120, epochs=30, learning_rate=0.5)
    unit = list(range(num_copies))
    trained, start, plan, examples = carried(
        settings, {"u": unit}, examples=with_copies(8), training=training
    )
    truth = retrained_on_batches(LOGISTIC, start, examples, plan, np.array(unit), settings)
    unlearned = forgotten_by_addition(trained.parameters, trained.vectors, ["u"])
    return float(np.linalg.norm(unlearned - truth)), float(np.linalg.norm(trained.parameters - truth))


@BOTH
def test_half_the_weight_makes_a_quarter_of_the_error(settings: OnlineSettings) -> None:
    """The vector is the derivative: what is left is second order in the unit's weight."""
    (whole, moved), (half, _) = error_of_removal(settings, 4), error_of_removal(settings, 2)
    assert 3.6 < whole / half < 4.6
    assert whole < moved / 5


def test_on_a_quadratic_the_removal_of_a_unit_is_exact() -> None:
    """With renormalised batches, whose recursion has the retained Hessian; also for a third of the data."""
    unit = list(range(8))
    trained, start, plan, examples = carried(RENORMALISED, {"u": unit}, task=QUADRATIC)
    truth = retrained_on_batches(QUADRATIC, start, examples, plan, np.array(unit), RENORMALISED)
    unlearned = forgotten_by_addition(trained.parameters, trained.vectors, ["u"])
    np.testing.assert_allclose(unlearned, truth, rtol=0, atol=1e-13)
    assert np.linalg.norm(trained.parameters - truth) > 0.01


def test_a_batch_that_is_one_units_alone_is_left_out_by_both() -> None:
    """Retraining skips the step, its L2 term too, and the vector takes all of the step back."""
    plan = (
        BatchStep(np.arange(4), 0.2),
        BatchStep(np.arange(4, 12), 0.1),
        BatchStep(np.array([0, 1, 20]), 0.3),
    )
    start, unit = initial_parameters(QUADRATIC, 0), np.arange(4)
    trained = train_online(QUADRATIC, start, blobs(), plan, {"u": unit}, RENORMALISED)
    truth = retrained_on_batches(QUADRATIC, start, blobs(), plan, unit, RENORMALISED)
    unlearned = forgotten_by_addition(trained.parameters, trained.vectors, ["u"])
    np.testing.assert_allclose(unlearned, truth, rtol=0, atol=1e-13)


@pytest.mark.parametrize("published", [False, True])
def test_the_fixed_recursion_equals_its_formula(published: bool) -> None:
    """With dense Hessians and gradients of the batches, written out: the sign is plus."""
    settings = replace(FIXED, as_published_code=published)
    trained, start, plan, examples = carried(settings, {"u": [0, 5]})
    w, a = start, np.zeros(DIMENSION)
    for step in plan:
        batch = examples.select(step.positions)
        product = CurvatureProduct(LOGISTIC, w, batch, kind=CurvatureKind.HESSIAN, l2=L2)
        keep = np.eye(DIMENSION) - step.learning_rate * dense_matrix(product, DIMENSION)
        fresh = np.zeros(DIMENSION)
        members = np.intersect1d(step.positions, [0, 5])
        if len(members):
            own = gradient(LOGISTIC, w, examples.select(members), l2=L2)
            fresh = step.learning_rate * len(members) / len(batch) * own
        a = keep @ (a + fresh) if published else keep @ a + fresh
        w = w - step.learning_rate * gradient(LOGISTIC, w, batch, l2=L2)
    np.testing.assert_allclose(trained.vectors.vectors[0], a, rtol=0, atol=1e-13)
    np.testing.assert_allclose(trained.parameters, w, rtol=0, atol=1e-13)


def test_the_published_code_is_further_from_retraining() -> None:
    """The extra factor costs accuracy; the default is closer."""
    published, _ = error_of_removal(replace(FIXED, as_published_code=True), 2)
    ours, _ = error_of_removal(FIXED, 2)
    assert ours < published


def test_with_fixed_weighting_a_groups_vector_is_the_sum_of_its_members() -> None:
    """To rounding; so one vector a unit is enough."""
    together, *_ = carried(FIXED, {"group": [1, 7, 9]})
    alone, *_ = carried(FIXED, {"a": [1], "b": [7], "c": [9]})
    np.testing.assert_allclose(
        together.vectors.vectors[0], alone.vectors.vectors.sum(axis=0), rtol=0, atol=1e-14
    )


def test_deletions_one_after_the_other_are_one_deletion() -> None:
    """Additive to rounding, in any order; the vectors of the others stay."""
    trained, *_ = carried(RENORMALISED, {"a": [1], "b": [7, 8], "c": [9]})
    w, vectors = trained.parameters, trained.vectors
    at_once = forgotten_by_addition(w, vectors, ["a", "c"])
    first = forgotten_by_addition(w, vectors, ["c"])
    second = forgotten_by_addition(first, vectors.without(["c"]), ["a"])
    np.testing.assert_allclose(second, at_once, rtol=0, atol=1e-15)
    assert vectors.without(["c"]).units == ("a", "b")
    assert len(vectors) == 3


@BOTH
def test_the_block_is_the_loop(settings: OnlineSettings) -> None:
    """Products one by one and as a block agree to rounding, with units in and out of the batch."""
    units = {str(index): [index] for index in range(6)}
    loop, *_ = carried(replace(settings, products=BlockProducts.LOOP), units)
    block, *_ = carried(replace(settings, products=BlockProducts.BATCHED), units)
    np.testing.assert_allclose(loop.vectors.vectors, block.vectors.vectors, rtol=0, atol=1e-14)


def test_training_along_the_plan_is_training() -> None:
    """The same batches and the same bits as `train`, with vectors carried or not, in float32."""
    settings = TaskSettings(num_clients=20, model="small-cnn")
    task, examples = make_task(settings), load_site(settings, 0).train.select(np.arange(20))
    training = TrainingSettings(epochs=2, batch_size=8, learning_rate=0.1, weight_decay=0.01, seed=4)
    start = initial_parameters(task, 0)
    plan = fixed_batches(len(examples), training)
    plain = train(task, start, examples, training).parameters
    online = OnlineSettings(l2=0.01)
    watched = train_online(task, start, examples, plan, {"0": np.array([0])}, online).parameters
    again = retrained_on_batches(task, start, examples, plan, np.array([], dtype=np.intp), online)
    np.testing.assert_array_equal(watched, plain)
    np.testing.assert_array_equal(again, plain)


def test_the_learning_rate_decays_by_epoch() -> None:
    """η · decay^epoch, the same examples each epoch in another order."""
    plan = fixed_batches(10, replace(TRAINING, epochs=3, batch_size=5), learning_rate_decay=0.5)
    assert [step.learning_rate for step in plan] == [0.2, 0.2, 0.1, 0.1, 0.05, 0.05]
    for epoch in range(3):
        pair = np.concatenate([step.positions for step in plan[2 * epoch : 2 * epoch + 2]])
        np.testing.assert_array_equal(np.sort(pair), np.arange(10))


def _repair(*, published: bool) -> tuple[float, float]:
    """How far deletion of b after repairing is from exact retraining and repairing; and how far it moved."""
    training = replace(TRAINING, batch_size=120, epochs=10)
    trained, start, plan, examples = carried(
        RENORMALISED, {"a": [0], "b": [5]}, examples=blobs(120), training=training
    )
    without_a = np.arange(1, 120)
    retained = examples.select(without_a)
    longer = fixed_batches(119, replace(training, seed=9))
    unlearned = forgotten_by_addition(trained.parameters, trained.vectors, ["a"])
    after = repair(
        LOGISTIC,
        unlearned,
        retained,
        longer,
        {"b": np.array([4])},
        trained.vectors.without(["a"]),
        RENORMALISED,
        add_as_published=published,
    )
    truth = retrained_on_batches(LOGISTIC, start, examples, plan, np.array([0, 5]), RENORMALISED)
    truth = retrained_on_batches(LOGISTIC, truth, retained, longer, np.array([4]), RENORMALISED)
    forgotten = forgotten_by_addition(after.parameters, after.vectors, ["b"])
    return float(np.linalg.norm(forgotten - truth)), float(np.linalg.norm(after.parameters - truth))


def test_vectors_carried_through_repairing_still_forget() -> None:
    """Deletion, fine-tuning, deletion of another unit: close to retraining without both and fine-tuning."""
    error, moved = _repair(published=False)
    assert error < moved / 20


def test_adding_repairing_vectors_as_published_is_further_off() -> None:
    """The stored vector keeps its full length though fine-tuning has worn part of it off."""
    assert _repair(published=False)[0] < _repair(published=True)[0] / 3


def test_repairing_wants_the_units_that_have_vectors() -> None:
    """A forgotten unit must not come back."""
    trained, _, plan, examples = carried(FIXED, {"a": [1]})
    with pytest.raises(DataError):
        repair(LOGISTIC, trained.parameters, examples, plan, {"b": np.array([1])}, trained.vectors, FIXED)


def test_too_many_vectors_are_refused_before_training() -> None:
    """With the need, the limit and what to do."""
    limited = replace(FIXED, memory_limit_bytes=2 * DIMENSION * 8)
    carried(limited, {"a": [1], "b": [2]})
    with pytest.raises(ConfigurationError):
        carried(limited, {"a": [1], "b": [2], "c": [3]})


@pytest.mark.parametrize(
    "units",
    [
        {"a": [1], "b": [1]},
        {"a": [2, 2]},
        {"a": [24]},
        {"a": [-1]},
    ],
)
def test_units_are_sets_of_examples_that_exist(units: dict[str, list[int]]) -> None:
    """Each example in one unit at most."""
    with pytest.raises(DataError):
        carried(FIXED, units)


def test_the_published_recursion_needs_fixed_batches() -> None:
    """It is defined for them only."""
    with pytest.raises(ConfigurationError):
        OnlineSettings(as_published_code=True)


def test_a_unit_without_a_vector_cannot_be_forgotten() -> None:
    """Unknown, or named twice: no half deletion."""
    vectors = UnitVectors(("a", "b"), np.ones((2, 3)))
    with pytest.raises(DataError):
        forgotten_by_addition(np.zeros(3), vectors, ["a", "c"])
    with pytest.raises(DataError):
        forgotten_by_addition(np.zeros(3), vectors, ["a", "a"])
    np.testing.assert_array_equal(forgotten_by_addition(np.zeros(3), vectors, []), np.zeros(3))


def test_units_have_one_vector_each() -> None:
    """Names and rows fit, and names differ."""
    with pytest.raises(DataError):
        UnitVectors(("a",), np.ones((2, 3)))
    with pytest.raises(DataError):
        UnitVectors(("a", "a"), np.ones((2, 3)))


def test_addition_into_given_memory_is_the_same() -> None:
    """`out` may be the parameters themselves; without it they stay."""
    vectors = UnitVectors(("a", "b"), np.array([[1.0, 2.0], [10.0, 20.0]], dtype=np.float32))
    theta = np.zeros(2, dtype=np.float32)
    fresh = forgotten_by_addition(theta, vectors, ["a", "b"])
    np.testing.assert_array_equal(fresh, [11, 22])
    np.testing.assert_array_equal(theta, 0)
    assert forgotten_by_addition(theta, vectors, ["a", "b"], out=theta) is theta
    np.testing.assert_array_equal(theta, fresh)


def test_the_task_decides_the_vectors_dtype() -> None:
    """float32 tasks carry float32."""
    task = replace(LOGISTIC, dtype=torch.float32)
    trained, *_ = carried(FIXED, {"a": [0]}, task=task)
    assert trained.vectors.vectors.dtype == np.float32
