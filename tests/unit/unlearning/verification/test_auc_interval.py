"""The AUC's interval against its formulas, and whether it holds the truth as often as it says."""

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import norm

from unlearning.verification.auc_interval import auc_interval
from unlearning.verification.discrimination import discriminate

Z = norm.ppf(0.975)


def interval(members, others, weights=None):
    others = np.asarray(others, dtype=np.float64)
    weights = np.ones(len(others)) if weights is None else np.asarray(weights, dtype=np.float64)
    return auc_interval(np.asarray(members, dtype=np.float64), others, weights, level=0.95)


def test_delongs_variance_by_hand_on_the_logit():
    """Members 1, 3, 4 beat 1/2, 1, 1 of the others 0, 2; these are beaten by 1, 2/3: A = 5/6.

    s² = var(1/2, 1, 1)/3 + var(1, 2/3)/2 = (1/12)/3 + (1/18)/2 = 1/18. Newcombe's interval, whose equation both ends
    solve, is the wider at neither end here.
    """
    low, high = interval([1, 3, 4], [0, 2])
    reach = Z * np.sqrt(1 / 18) / (5 / 36)
    assert low == pytest.approx(float(expit(logit(5 / 6) - reach)), rel=1e-6)
    assert high == pytest.approx(float(expit(logit(5 / 6) + reach)), rel=1e-6)


def test_perfect_separation_has_newcombes_interval():
    """Of 20 and 20: 1 − θ = z² θ/400 · (1 + 19·((1−θ)/(2−θ) + θ/(1+θ))) at the lower end, and 1 at the upper."""
    low, high = interval(np.arange(20) + 100, np.arange(20))
    assert high == 1.0
    right = Z**2 * low / 400 * (1 + 19 * ((1 - low) / (2 - low) + low / (1 + low)))
    assert 1 - low == pytest.approx(right, rel=1e-6)


def test_members_and_others_swapped_turn_the_interval_round():
    """An attacker may turn the sign; what can be said of him is the same."""
    generator = np.random.default_rng(3)
    one, other = generator.normal(1, 1, 9), generator.normal(0, 2, 17)
    low, high = interval(one, other)
    assert interval(other, one) == pytest.approx((1 - high, 1 - low), rel=1e-6)


def test_an_example_of_weight_two_counts_less_than_two_examples():
    """Two examples are more independent facts than one that weighs double."""
    members = [1.0, 2.0, 2.5]
    doubled, twice = interval(members, [0, 1.5], [2, 1]), interval(members, [0, 0, 1.5])
    assert doubled[1] - doubled[0] > twice[1] - twice[0]


def coverage(auc: float, spread: float, num_members: int, num_others: int, *, times: int, ties: bool = False):
    """How often the interval holds P(X > Y) + ½P(X = Y) of X ~ N(μ, spread²), Y ~ N(0, 1), of this AUC before ties."""
    mean = norm.ppf(auc) * np.sqrt(1 + spread**2)
    truth = auc
    if ties:
        edges = np.array([-np.inf, 0, 1, 2, np.inf])
        of_x, of_y = np.diff(norm.cdf(edges, mean, spread)), np.diff(norm.cdf(edges))
        truth = float(of_x @ (np.cumsum(of_y) - of_y / 2))
    generator, hits = np.random.default_rng(0), 0
    for _ in range(times):
        members, others = generator.normal(mean, spread, num_members), generator.normal(size=num_others)
        if ties:
            members, others = (np.clip(np.floor(scores), -1, 2) for scores in (members, others))
        low, high = interval(members, others)
        hits += low <= truth <= high
    return hits / times


def test_the_interval_covers_where_the_percentile_bootstrap_does_not():
    """At an AUC of 0.96 and 20 a side the bootstrap's holds the truth 84 to 88 % of the time; this 95 % less noise."""
    assert coverage(0.96, 1.0, 20, 20, times=500) > 0.95 - 2 * np.sqrt(0.95 * 0.05 / 500)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("ties", [False, True], ids=["continuous", "ties"])
@pytest.mark.parametrize("spread", [1.0, 2.0], ids=["alike", "unequal"])
@pytest.mark.parametrize("auc", [0.5, 0.75, 0.9, 0.96, 0.99])
@pytest.mark.parametrize(("num_members", "num_others"), [(4, 4), (10, 10), (20, 20), (20, 200), (100, 300)])
def test_the_interval_covers_nine_in_ten_and_more_everywhere(auc, spread, num_members, num_others, ties):
    """Few and many, near ½ and near 1, spread alike and not, with ties and without."""
    assert coverage(auc, spread, num_members, num_others, times=1000, ties=ties) > 0.92 - 2 * 0.0086


def test_it_is_the_interval_of_every_figure():
    """`discriminate` gives it, whatever the bootstrap's seed and replicates."""
    members, others = np.array([1.0, 3.0, 4.0]), np.array([0.0, 2.0])
    found = discriminate(members, others, seed=5, replicates=10).auc
    assert (found.low, found.high) == pytest.approx(interval(members, others))
