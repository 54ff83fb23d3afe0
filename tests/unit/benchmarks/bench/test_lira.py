"""LiRA against its formulas, and on shadow models that are really trained."""

from math import log, sqrt

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from benchmarks.bench.lira import Shadows, fit, online_scores
from unlearning.errors import DataError
from unlearning.verification.discrimination import auc
from unlearning.verification.observations import margins

# logits: example 0 is 1, 3 with it and -1, 0 without; example 1 is 2, 4 with it and 2, 5 without
LOGITS = np.array([[1.0, 2.0], [3.0, 4.0], [-1.0, 2.0], [0.0, 5.0]])
SHADOWS = Shadows(LOGITS, np.array([[True, True], [True, True], [False, False], [False, False]]))
TARGET = np.array([2.5, 3.0])


def lira_online(target, shadows, **options):
    return online_scores(target, *fit(shadows), **options)


def test_the_margin_by_hand():
    """Class 1 of outputs (1, 5, 1): 5 − log(2e) = 4 − log 2; and it is the logit of the softmax."""
    outputs = np.array([[1.0, 5.0, 1.0], [0.2, -0.3, 0.5]])
    found = margins(outputs, np.array([1, 2]))
    assert found[0] == pytest.approx(4 - log(2))
    share = np.exp(outputs[1])[2] / np.exp(outputs[1]).sum()
    assert found[1] == pytest.approx(log(share / (1 - share)))


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


def test_the_global_variance_is_that_about_each_examples_own_mean():
    """With: squares 2·1² and 2·1² over 4 values. Without: 2·0.5² and 2·1.5², so σ² = 1.25 for both examples."""
    expected = norm.logpdf(2.5, 2, 1) - norm.logpdf(2.5, -0.5, sqrt(1.25))
    assert lira_online(TARGET, SHADOWS, global_variance=True)[0] == pytest.approx(expected, rel=1e-5)


def test_lira_finds_the_members_of_an_overfitted_model():
    """Random labels can only be memorised; 60 examples in 100 dimensions are, and LiRA tells who."""
    generator = np.random.default_rng(0)
    inputs, labels = generator.normal(size=(60, 100)), generator.integers(0, 2, 60)

    def train_and_score(indices):
        model = LogisticRegression(C=0.1, max_iter=500).fit(inputs[indices], labels[indices])
        return np.where(labels == 1, 1, -1) * model.decision_function(inputs)

    trained_on = generator.random((64, 60)).argsort(axis=0) < 32  # each example is in half of the shadows
    shadows = Shadows(np.stack([train_and_score(np.flatnonzero(mask)) for mask in trained_on]), trained_on)
    members = generator.permutation(60)[:30]
    target = train_and_score(members)
    is_member = np.isin(np.arange(60), members)
    scores = lira_online(target, shadows)
    assert auc(scores[is_member], scores[~is_member]) > 0.9
    other = lira_online(train_and_score(np.flatnonzero(~is_member)), shadows)
    assert auc(other[is_member], other[~is_member]) < 0.1


LOPSIDED = Shadows(np.full((3, 1), 0.5), np.array([[True], [True], [False]]))
REFUSED = {
    "one-shadow-on-a-side": lambda: lira_online(np.array([0.5]), LOPSIDED),
    "infinite-margin-of-a-shadow": lambda: Shadows(np.full((4, 1), np.inf), np.ones((4, 1), dtype=bool)),
    "infinite-margin": lambda: lira_online(np.array([1.0, np.inf]), SHADOWS),
    "no-margin": lambda: lira_online(np.array([1.0, np.nan]), SHADOWS),
    "one-example-for-two": lambda: lira_online(np.array([0.5]), SHADOWS),
}


@pytest.mark.parametrize("attempt", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_judged_is_refused(attempt):
    """Two shadows a side for a variance, and finite numbers that fit."""
    with pytest.raises(DataError):
        attempt()
