"""What clients add to a sum, and what is read from it, by hand: buffers of a network are apart."""

from dataclasses import replace

import numpy as np
import pytest

from tests.normalised import TASK
from unlearning.buffers import buffer_positions
from unlearning.errors import DataError, SecureAggregationError
from unlearning.parameters import size_of_vector
from unlearning.secure_aggregation.addends import TAIL, SecureTotal, SumTerm, addend, read_total
from unlearning.secure_aggregation.terms import RoundTerms
from unlearning.training import initial_parameters, structure

SIZE = size_of_vector(structure(TASK))
BUFFERS = buffer_positions(TASK)
WEIGHTS = np.setdiff1d(np.arange(SIZE), BUFFERS)
TERMS = RoundTerms(
    federation="test",
    run=1,
    sequence=1,
    purpose="train",
    length=SIZE + TAIL,
    num_clients=2,
    clip_norm=10.0,
    max_weight=1000.0,
)


def update(weight: float, buffer: float) -> np.ndarray:
    """Return an update with one number for the first weight and one for the first buffer."""
    made = np.zeros(SIZE, dtype=np.float32)
    made[WEIGHTS[0]], made[BUFFERS[0]] = weight, buffer
    return made


def summed(*clients: list[SumTerm], losses: tuple[float, ...] = (0.0, 0.0)) -> SecureTotal:
    parts = [addend(TASK, terms, loss, TERMS) for terms, loss in zip(clients, losses, strict=True)]
    return read_total(TASK, np.sum(parts, axis=0, dtype=np.uint64), TERMS, ["a", "b"])


def test_a_round_of_training_is_the_mean_by_examples():
    found = summed(
        [SumTerm(update=update(1.0, 4.0), count=30)],
        [SumTerm(update=update(-2.0, 8.0), count=10)],
        losses=(0.5, 1.5),
    )
    assert found.step[WEIGHTS[0]] == pytest.approx((30 * 1.0 - 10 * 2.0) / 40)
    assert found.step[BUFFERS[0]] == pytest.approx((30 * 4.0 + 10 * 8.0) / 40)
    assert (found.num_examples, found.num_kept, found.num_clipped) == (40, 40, 0)
    assert found.loss == pytest.approx((30 * 0.5 + 10 * 1.5) / 40, abs=1e-4)
    assert found.shares == {"a": 20, "b": 20}
    moved = found.applied_to(initial_parameters(TASK, 0))
    assert moved.dtype == np.float32


def test_what_is_forgotten_moves_weights_by_its_rate_and_no_buffer():
    """Buffers are statistics of what is kept, and their mean is over that."""
    found = summed(
        [
            SumTerm(update=update(1.0, 4.0), count=30),
            SumTerm(update=update(0.5, 9.0), count=20, rate=-3.0, keeps=False),
        ],
        [SumTerm(update=update(-2.0, 8.0), count=10)],
    )
    assert found.step[WEIGHTS[0]] == pytest.approx((30 * 1.0 - 3.0 * 20 * 0.5 - 10 * 2.0) / 60)
    assert found.step[BUFFERS[0]] == pytest.approx((30 * 4.0 + 10 * 8.0) / 40)
    assert (found.num_examples, found.num_kept) == (60, 40)


def test_an_update_is_clipped_before_its_rate_and_the_sum_says_of_how_many():
    """Weights by their norm, buffers each by itself."""
    long = update(20.0, -30.0)
    long[WEIGHTS[1]] = 15.0  # of norm 25
    found = summed([SumTerm(update=long, count=30, rate=2.0)], [SumTerm(update=update(9.0, 10.0), count=10)])
    assert found.step[WEIGHTS[0]] == pytest.approx((2 * 30 * 8.0 + 10 * 9.0) / 40)
    assert found.step[WEIGHTS[1]] == pytest.approx(2 * 30 * 6.0 / 40)
    assert found.step[BUFFERS[0]] == pytest.approx((-30 * 10.0 + 10 * 10.0) / 40)
    assert found.num_clipped == 1


@pytest.mark.parametrize(("loss", "counted"), [(np.nan, 1e3), (np.inf, 1e3), (-1e9, -1e3), (5.0, 5.0)])
def test_a_loss_is_within_what_a_sum_can_hold(loss: float, counted: float):
    """One that is no number counts as the worst."""
    found = summed([SumTerm(update=update(0.0, 0.0), count=3)], [], losses=(loss, 0.0))
    assert found.loss == pytest.approx(counted)


def test_without_examples_there_is_no_step_and_no_loss():
    found = summed([], [])
    assert (found.num_examples, found.loss) == (0, None)
    assert not found.step.any()


@pytest.mark.parametrize(
    ("term", "error"),
    [
        (SumTerm(update=update(0.0, 0.0), count=1001), DataError),
        (SumTerm(update=update(0.0, 0.0), count=101, rate=-10.0), DataError),
        (SumTerm(update=update(np.nan, 0.0), count=1), DataError),
        (SumTerm(update=update(0.0, np.inf), count=1), DataError),
        (SumTerm(update=np.zeros(SIZE - 1, dtype=np.float32), count=1), SecureAggregationError),
    ],
)
def test_what_no_sum_can_hold_is_refused_at_the_client(term: SumTerm, error: type[Exception]):
    """Too large a weight, a number that is none, another length."""
    with pytest.raises(error):
        addend(TASK, [term], 0.0, TERMS)
    addend(TASK, [SumTerm(update=update(0.0, 0.0), count=1000, rate=0.1)], 0.0, TERMS)


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 1), (0, 3), (1, -1), (1, 3), (2, 2001), (2, 39), (3, -1), (3, 41)],
    ids=str,
)
def test_a_sum_that_no_clients_make_is_refused(place: int, value: int):
    """Ones for each client, no more clipped than clients, and no more kept than counted."""
    terms = [[SumTerm(update=update(1.0, 1.0), count=20)], [SumTerm(update=update(1.0, 1.0), count=20)]]
    total = np.sum([addend(TASK, one, 0.0, TERMS) for one in terms], axis=0, dtype=np.uint64)
    assert read_total(TASK, total, TERMS, ["a", "b"]).num_examples == 40
    total[place - TAIL] = np.array(value, dtype=np.int64).view(np.uint64)
    with pytest.raises(SecureAggregationError, check=lambda exc: exc.code == "no-sum"):
        read_total(TASK, total, TERMS, ["a", "b"])


def test_the_coarseness_bounds_what_fixed_point_has_moved():
    """Of every coordinate of the sum, with weights so large that fixed point is coarse."""
    terms, generator = replace(TERMS, max_weight=1e13), np.random.default_rng(0)
    updates = [generator.standard_normal(SIZE).astype(np.float32) for _ in "ab"]
    parts = [addend(TASK, [SumTerm(update=one, count=7)], 0.0, terms) for one in updates]
    found = read_total(TASK, np.sum(parts, axis=0, dtype=np.uint64), terms, ["a", "b"])
    exact = sum(7 * one.astype(np.float64) for one in updates)
    largest = float(np.abs(found.step * found.num_examples - exact).max())
    assert found.coarseness / 2 < largest <= found.coarseness
