"""LiRA against its formulas, and on shadow models that are really trained."""

from math import log, sqrt

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from benchmarks.bench.lira import (
    Shadows,
    fit,
    logit_confidence,
    offline_scores,
    online_scores,
    train_shadows,
)
from unlearning.errors import DataError
from unlearning.verification.discrimination import auc
from unlearning.verification.observations import margins

# logits: example 0 is 1, 3 with it and -1, 0 without; example 1 is 2, 4 with it and 2, 5 without
LOGITS = np.array([[1.0, 2.0], [3.0, 4.0], [-1.0, 2.0], [0.0, 5.0]])
SHADOWS = Shadows(LOGITS, np.array([[True, True], [True, True], [False, False], [False, False]]))
TARGET = np.array([2.5, 3.0])


def lira_online(target, shadows, **options):
    return online_scores(target, *fit(shadows), **options)


def lira_offline(target, shadows, **options):
    return offline_scores(target, fit(shadows)[1], **options)


def test_the_logit_of_a_confidence():
    """0.75 is log 3; 0 and 1 stay finite, symmetric and in order."""
    assert logit_confidence(np.array([0.75]))[0] == pytest.approx(log(3))
    low, below, high = logit_confidence(np.array([0.0, 1e-9, 1.0]))
    assert np.isfinite([low, high]).all()
    assert low < below
    assert high == pytest.approx(-low, rel=1e-4)


def test_the_margin_by_hand():
    """Class 1 of outputs (1, 5, 1): 5 − log(2e) = 4 − log 2; and it is the logit of the softmax."""
    outputs = np.array([[1.0, 5.0, 1.0], [0.2, -0.3, 0.5]])
    found = margins(outputs, np.array([1, 2]))
    assert found[0] == pytest.approx(4 - log(2))
    odds = np.exp(outputs[1])
    assert found[1] == pytest.approx(logit_confidence(np.array([odds[2] / odds.sum()]))[0])


def test_margins_of_sure_answers_stay_apart():
    """Outputs (40, 0) and (60, 0) are 40 and 60; their probabilities are both 1, in double precision too."""
    outputs = np.array([[40.0, 0.0], [60.0, 0.0]], dtype=np.float32)
    assert margins(outputs, np.array([0, 0])).tolist() == [40.0, 60.0]
    assert margins(outputs, np.array([1, 1])).tolist() == [-40.0, -60.0]


def test_the_online_ratio_by_hand():
    """Example 0: N(2.5; 2, 1) against N(2.5; −0.5, 0.5²), each log density written out."""
    inside = -0.5 * log(2 * np.pi) - 0.5 * 0.5**2
    outside = -0.5 * log(2 * np.pi) - log(0.5) - 0.5 * (3.0 / 0.5) ** 2
    assert lira_online(TARGET, SHADOWS)[0] == pytest.approx(inside - outside, rel=1e-6)


def test_the_offline_score_by_hand():
    """Example 1: P[Z < 3] with Z ~ N(3.5, 1.5²), in logarithms."""
    assert lira_offline(TARGET, SHADOWS)[1] == pytest.approx(log(norm.cdf((3 - 3.5) / 1.5)), rel=1e-6)


def test_the_global_variance_is_that_about_each_examples_own_mean():
    """Without: squares 2·0.5² and 2·1.5² over 4 values, so σ² = 1.25 for both examples."""
    expected = log(norm.cdf((2.5 + 0.5) / sqrt(1.25)))
    assert lira_offline(TARGET, SHADOWS, global_variance=True)[0] == pytest.approx(expected, rel=1e-5)


def test_every_example_is_in_exactly_half_of_the_shadow_models():
    """And the driver trains on what it says."""
    seen = []

    def train_and_score(indices):
        seen.append(indices)
        return np.full(7, 0.5)

    shadows = train_shadows(train_and_score, 7, 6, seed=0)
    assert shadows.trained_on.sum(axis=0).tolist() == [3] * 7
    for indices, mask in zip(seen, shadows.trained_on, strict=True):
        np.testing.assert_array_equal(indices, np.flatnonzero(mask))


def test_lira_finds_the_members_of_an_overfitted_model():
    """Random labels can only be memorised; 60 examples in 100 dimensions are, and LiRA tells who."""
    generator = np.random.default_rng(0)
    inputs, labels = generator.normal(size=(60, 100)), generator.integers(0, 2, 60)

    def train_and_score(indices):
        model = LogisticRegression(C=0.1, max_iter=500).fit(inputs[indices], labels[indices])
        return np.where(labels == 1, 1, -1) * model.decision_function(inputs)

    shadows = train_shadows(train_and_score, 60, 16, seed=1)
    members = generator.permutation(60)[:30]
    target = train_and_score(members)
    is_member = np.isin(np.arange(60), members)
    for attack in (lira_online, lira_offline):
        scores = attack(target, shadows, global_variance=True)
        assert auc(scores[is_member], scores[~is_member]) > 0.9
        other = attack(train_and_score(np.flatnonzero(~is_member)), shadows, global_variance=True)
        assert auc(other[is_member], other[~is_member]) < 0.1


LOPSIDED = Shadows(np.full((3, 1), 0.5), np.array([[True], [True], [False]]))
REFUSED = {
    "too-few-shadows": lambda: train_shadows(lambda _: np.full(3, 0.5), 3, 2, seed=0),
    "an-odd-number": lambda: train_shadows(lambda _: np.full(3, 0.5), 3, 5, seed=0),
    "another-number-of-margins": lambda: train_shadows(lambda _: np.full(2, 0.5), 3, 4, seed=0),
    "one-shadow-on-a-side": lambda: lira_offline(np.array([0.5]), LOPSIDED),
    "one-shadow-on-a-side-online": lambda: lira_online(np.array([0.5]), LOPSIDED),
    "above-one": lambda: logit_confidence(np.array([0.5, 1.5])),
    "below-zero": lambda: logit_confidence(np.array([0.5, -0.1])),
    "no-probability": lambda: logit_confidence(np.array([0.5, np.nan])),
    "infinite-margin-of-a-shadow": lambda: Shadows(np.full((4, 1), np.inf), np.ones((4, 1), dtype=bool)),
    "infinite-margin": lambda: lira_online(np.array([1.0, np.inf]), SHADOWS),
    "no-margin": lambda: lira_online(np.array([1.0, np.nan]), SHADOWS),
    "one-example-for-two": lambda: lira_online(np.array([0.5]), SHADOWS),
}


@pytest.mark.parametrize("attempt", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_judged_is_refused(attempt):
    """Half of each example's shadows, two a side for a variance, and finite numbers that fit."""
    with pytest.raises(DataError):
        attempt()
