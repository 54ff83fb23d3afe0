"""Measurements as whole numbers that are summed: exact sums, and values to half a bin."""

import numpy as np
import pytest

from unlearning.errors import SecureAggregationError
from unlearning.verification.masked_counts import BINS, LENGTH, from_counts, to_counts
from unlearning.verification.observations import Observations


def observed(seed: int, count: int) -> Observations:
    generator = np.random.default_rng(seed)
    losses, confidences = generator.exponential(size=count), generator.uniform(size=count)
    return Observations(count, float(losses.sum()), float(count // 2), losses, confidences)


def test_the_sum_of_two_clients_has_their_sums_and_every_value_to_half_a_bin() -> None:
    """Losses by l / (1 + l), confidences as they are; a set without an example is missing."""
    one, other = observed(1, 40), observed(2, 25)
    found = from_counts(to_counts({"retained": one}) + to_counts({"retained": other}))
    assert set(found) == {"retained"}
    both = found["retained"]
    assert both.num_examples == 65
    assert both.loss_sum == pytest.approx(one.loss_sum + other.loss_sum, abs=1e-3)
    assert both.score_sum == 32
    losses = np.sort(np.concatenate([one.losses, other.losses]))
    error = np.abs(np.sort(both.losses) / (1 + np.sort(both.losses)) - losses / (1 + losses))
    assert error.max() <= 0.5 / BINS + 1e-12
    confidences = np.sort(np.concatenate([one.confidences, other.confidences]))
    assert np.abs(np.sort(both.confidences) - confidences).max() <= 0.5 / BINS + 1e-12


def test_a_loss_that_is_no_number_is_the_largest() -> None:
    """It is counted, and the sum stays a number."""
    one = Observations(1, np.nan, 0.0, np.array([np.inf]), np.array([0.5]))
    found = from_counts(to_counts({"test": one}))["test"]
    assert found.losses[0] > 500
    assert np.isfinite(found.loss_sum)


def test_numbers_that_no_clients_add_up_to_are_refused() -> None:
    """As many losses as confidences as examples."""
    counts = to_counts({"test": observed(1, 3)})
    assert counts.shape == (LENGTH,)
    counts[-1] += 1
    with pytest.raises(SecureAggregationError):
        from_counts(counts)
