"""AUC, true positives at few false ones, and their intervals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from unlearning.errors import DataError
from unlearning.verification.discrimination import (
    _interval,
    auc,
    discriminate,
    effective_size,
    share,
    tpr_at_fpr,
)
from unlearning.verification.figures import Estimate


def values(*numbers: float):
    return np.array(numbers, dtype=np.float64)


SCORES = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=12).map(np.array)


def test_auc_of_weighted_others():
    """The member 2 beats 1 (weight 3) and loses to 5 (weight 1): 3/4."""
    assert auc(values(2), values(5, 1), values(1, 3)) == 0.75


@given(SCORES, SCORES)
def test_auc_is_scikit_learns(members, others):
    """Ties included."""
    truth = np.repeat([1, 0], [len(members), len(others)])
    assert auc(members, others) == pytest.approx(roc_auc_score(truth, np.concatenate([members, others])))


@given(SCORES, SCORES, st.sampled_from([0.01, 0.2, 0.5]))
def test_the_true_positive_rate_is_the_best_point_of_scikit_learns_curve(members, others, fpr):
    """The highest true-positive rate among the curve's points that are allowed."""
    truth = np.repeat([1, 0], [len(members), len(others)])
    false, true, _ = roc_curve(truth, np.concatenate([members, others]), drop_intermediate=False)
    assert tpr_at_fpr(members, others, fpr) == pytest.approx(true[false <= fpr + 1e-9].max())


def test_perfect_separation_is_one_and_the_interval_still_has_a_width():
    """Every replicate says 1; for the rate the rule of three leaves room for 3 of 30."""
    result = discriminate(np.arange(100.0, 130.0), np.arange(0.0, 100.0), seed=0)
    assert (result.auc.value, result.auc.high) == (1.0, 1.0)
    assert 0.9 < result.auc.low < 0.97
    assert result.tpr == Estimate(1.0, pytest.approx(0.9), 1.0)


def test_equal_distributions_are_told_apart_by_chance_only():
    """The interval holds 0.5, and 1 % of the false ones bring about 1 % of the true ones."""
    generator = np.random.default_rng(0)
    result = discriminate(generator.normal(size=1000), generator.normal(size=1000), seed=0)
    assert result.auc.low < 0.5 < result.auc.high
    assert result.auc.high - result.auc.low < 0.06
    assert result.tpr.value < 0.03


def test_ninety_nine_others_cannot_resolve_one_percent():
    """With 99 the rate is not given and the reason is; with 100 it is."""
    members = np.arange(20.0)
    few = discriminate(members, np.arange(99.0), seed=0, replicates=20)
    assert few.tpr is None
    assert few.tpr_reason == "not measured: fewer than 100 examples that were never trained on"
    assert discriminate(members, np.arange(100.0), seed=0, replicates=20).tpr is not None


def test_one_false_positive_in_a_hundred_is_allowed():
    """The threshold passes the highest other (1 %) and stops at the second: members above that count."""
    others = np.arange(100.0)
    assert tpr_at_fpr(values(98.5, 97.5, 99.5, 98.0), others) == 0.5


def test_weights_of_zero_take_no_part():
    """An example that weighs nothing changes neither figure nor interval."""
    members, others = values(1, 2, 3, 5), values(0, 2, 4, 1)
    plain = discriminate(members, others, seed=3)
    padded = discriminate(members, values(0, 2, 4, 1, 9), seed=3, weights=values(1, 1, 1, 1, 0))
    assert padded == plain


def test_the_seed_alone_decides_the_interval():
    """Same seed, same interval; that of the AUC needs none."""
    generator = np.random.default_rng(0)
    members, others = generator.normal(2, 1, size=40), generator.normal(size=150)
    first, again, other = (discriminate(members, others, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.auc == other.auc
    assert (first.tpr.low, first.tpr.high) != (other.tpr.low, other.tpr.high)


def test_wilsons_interval_of_a_share():
    """None of 10: 0 to z²/(n + z²) = 3.8415/13.8415; half of 10 is symmetric."""
    none = share(np.zeros(10, dtype=bool))
    assert none == Estimate(0.0, 0.0, pytest.approx(0.27753, abs=1e-5))
    half = share(np.arange(10) < 5)
    assert half.value == 0.5
    assert half.low == pytest.approx(1 - half.high)
    for nothing in (np.zeros(0, dtype=bool), np.ones((2, 2), dtype=bool)):
        with pytest.raises(DataError):
            share(nothing)


def test_kishs_effective_size():
    """Equal weights count fully; 3 and 1 count as 16/10."""
    assert effective_size(np.ones(7)) == pytest.approx(7)
    assert effective_size(values(3, 1)) == pytest.approx(1.6)
    assert effective_size(values(0.0)) == 0


@settings(max_examples=30)
@given(SCORES, SCORES)
def test_an_interval_holds_its_figure(members, others):
    """low ≤ value ≤ high, whatever the scores."""
    result = discriminate(members, others, seed=0, replicates=30).auc
    assert 0 <= result.low <= result.value <= result.high <= 1


@pytest.mark.parametrize(
    ("members", "others", "weights"),
    [
        (values(), values(1), None),
        (values(1), values(), None),
        (values(np.nan), values(1), None),
        (values(1), values(1, 2), values(1)),
        (values(1), values(1), values(0)),
        (values(1), values(1, 2), values(2, -1)),
    ],
    ids=["no-member", "no-other", "nan", "short-weights", "zero-weights", "negative-weight"],
)
def test_what_cannot_be_compared_is_refused(members, others, weights):
    """No figure is made up."""
    with pytest.raises(DataError):
        auc(members, others, weights)


@pytest.mark.parametrize(
    ("value", "replicates", "expected"),
    [
        (0.5, np.linspace(0, 1, 1001), (0.025, 0.975)),
        (0.99, np.linspace(0, 1, 1001), (0.025, 0.99)),  # an interval holds its figure
        (0.0, np.zeros(50), (0.0, 3 / 20)),
        (1.0, np.ones(50), (1 - 3 / 20, 1.0)),
        (0.5, np.full(50, 0.5), (0.5 - 3 / 20, 0.5 + 3 / 20)),
    ],
)
def test_the_bootstraps_interval_by_hand(value, replicates, expected):
    """From the 2.5th to the 97.5th percentile; where every replicate is the same, 3/n to each side, within 0 and 1."""
    found = _interval(value, replicates, smaller=20)
    assert (found.value, found.low, found.high) == pytest.approx((value, *expected))
