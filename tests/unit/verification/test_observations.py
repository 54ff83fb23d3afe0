"""What a client tells about a set of its examples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlearning.errors import DataError
from unlearning.tasks.task import PerExample
from unlearning.verification.observations import Observations, merge, observe


def per_example(count: int) -> PerExample:
    index = np.arange(count, dtype=np.float64)
    return PerExample(loss=index, score=index % 2, confidence=index / 100)


def observed(count: int, max_samples: int, seed: int = 0) -> Observations:
    return observe(per_example(count), max_samples=max_samples, generator=np.random.default_rng(seed))


def test_the_sums_run_over_every_example_not_over_the_sample():
    """Ten examples of loss 0..9, three sampled: the sums are those of all ten."""
    observations = observed(10, max_samples=3)
    assert (observations.num_examples, observations.loss_sum, observations.score_sum) == (10, 45.0, 5.0)
    assert (observations.mean_loss, observations.mean_score) == (4.5, 0.5)


def test_the_sample_is_bounded_and_without_repeats():
    """No more than `max_samples` values, each of another example."""
    losses = observed(10, max_samples=3).losses
    assert len(losses) == len(set(losses.tolist())) == 3


def test_loss_and_confidence_at_one_position_belong_to_one_example():
    """The confidence was made a hundredth of the loss, and still is."""
    observations = observed(50, max_samples=20)
    np.testing.assert_array_equal(observations.confidences, observations.losses / 100)


def test_the_sample_is_not_in_the_order_of_the_examples():
    """Sending everything in order would say which example is which."""
    losses = observed(50, max_samples=50).losses
    assert sorted(losses.tolist()) == list(range(50))
    assert losses.tolist() != list(range(50))


def test_the_generator_alone_decides_the_sample():
    """Equal seeds, equal sample; another seed, another one."""
    first, again, other = (observed(50, 5, seed).losses.tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_no_example_has_no_mean():
    """The mean over nothing is None, not nan and not zero."""
    empty = observed(0, max_samples=5)
    assert (empty.mean_loss, empty.mean_score) == (None, None)


def test_a_loss_that_overflowed_has_no_mean():
    """An infinite loss leaves the mean empty and the score as it is."""
    values = PerExample(np.array([np.inf, 1.0]), np.array([0.0, 1.0]), np.array([0.0, 0.5]))
    observations = observe(values, max_samples=2, generator=np.random.default_rng(0))
    assert (observations.mean_loss, observations.mean_score) == (None, 0.5)


@given(st.permutations(range(4)))
def test_merging_gives_the_same_bits_in_every_order(order):
    """Replies arrive in any order; the pooled observations do not show it."""
    parts = [
        Observations(3, 0.1 * (k + 1), 1.0 / (k + 3), np.array([0.3 * k, 0.2]), np.array([0.9, 0.1 * k]))
        for k in range(4)
    ]
    straight, shuffled = merge(parts), merge(parts[k] for k in order)
    for name, values in straight.to_arrays().items():
        assert values.tobytes() == shuffled.to_arrays()[name].tobytes()


def test_merging_adds_sums_and_pools_samples():
    """Counts and sums add up, pairs stay together."""
    merged = merge([observed(4, max_samples=4), observed(2, max_samples=1)])
    assert (merged.num_examples, merged.loss_sum, merged.score_sum) == (6, 7.0, 3.0)
    assert len(merged.losses) == 5
    np.testing.assert_array_equal(merged.confidences, merged.losses / 100)


def test_merging_nothing_is_an_empty_observation():
    """No reply at all is a set of no examples."""
    assert merge([]).num_examples == 0


def test_observations_survive_transport():
    """Arrays there and back change nothing."""
    observations = observed(7, max_samples=4)
    back = Observations.from_arrays(observations.to_arrays())
    assert (back.num_examples, back.loss_sum, back.score_sum) == (7, 21.0, 3.0)
    np.testing.assert_array_equal(back.losses, observations.losses)
    np.testing.assert_array_equal(back.confidences, observations.confidences)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sums", np.array([2.5, 0.0, 0.0])),
        ("sums", np.array([-1.0, 0.0, 0.0])),
        ("sums", np.array([np.nan, 0.0, 0.0])),
        ("sums", np.zeros(2)),
        ("losses", np.zeros(1)),
        ("losses", np.zeros((2, 1))),
        ("sums", np.array([1.0, 0.0, 0.0])),
    ],
    ids=["half", "negative", "nan", "short", "unequal", "two-dimensional", "more-sampled-than-there-are"],
)
def test_malformed_observations_are_refused(name, value):
    """A client's arrays are checked before anything is computed of them."""
    arrays = {**observed(2, max_samples=2).to_arrays(), name: value}
    with pytest.raises(DataError):
        Observations.from_arrays(arrays)


def test_a_missing_array_is_named():
    """The message says which array is not there."""
    with pytest.raises(DataError, match="confidences"):
        Observations.from_arrays({"sums": np.zeros(3), "losses": np.zeros(0)})
