"""Equivalence to retraining, against numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.bench.equivalence import (
    causal_faithfulness,
    kl_divergence,
    logit_mse,
    loss_change_correlation,
    parameter_gap,
    prediction_agreement,
)
from unlearning.errors import DataError

LOGITS = arrays(np.float64, (4, 3), elements=st.floats(-20, 20))


def test_kl_of_a_worked_case():
    """p = (3/4, 1/4), q = (1/2, 1/2): KL = 3/4 ln 3/2 + 1/4 ln 1/2 = 0.130812."""
    p, q = np.log(np.array([[3.0, 1.0]])), np.zeros((1, 2))
    assert kl_divergence(p, q) == pytest.approx(0.75 * np.log(1.5) + 0.25 * np.log(0.5))
    assert kl_divergence(q, p) != pytest.approx(kl_divergence(p, q))


@given(LOGITS, LOGITS)
def test_kl_is_never_negative_and_zero_for_the_same(p, q):
    """Gibbs' inequality; a constant added to the logits changes nothing."""
    assert kl_divergence(p, q) >= -1e-12
    assert kl_divergence(p, p + 3.0) == pytest.approx(0, abs=1e-9)


def test_logit_mse_and_agreement_of_a_worked_case():
    """Differences 1, 0, 0, 3 → 2.5; one of two predictions agrees."""
    one, other = np.array([[0.0, 1.0], [2.0, 0.0]]), np.array([[1.0, 1.5], [2.0, 3.0]])
    assert logit_mse(one, other) == pytest.approx((1 + 0.25 + 0 + 9) / 4)
    assert prediction_agreement(one, other) == 0.5


def test_the_parameter_gap_is_relative_to_the_retrained_model():
    """‖(3,4)−(0,4)‖/‖(0,4)‖ = 3/4."""
    assert parameter_gap(np.array([0.0, 4.0]), np.array([3.0, 4.0])) == pytest.approx(0.75)


def test_faithfulness_is_one_for_what_retraining_gives():
    """Accuracies 0.9 originally, 0.7 retrained: halfway is 1/2, no change is 0, the wrong way negative."""
    assert causal_faithfulness(0.9, 0.7, 0.7).value == pytest.approx(1)
    assert causal_faithfulness(0.9, 0.8, 0.7).value == pytest.approx(0.5)
    assert causal_faithfulness(0.9, 0.9, 0.7).value == pytest.approx(0)
    assert causal_faithfulness(0.9, 1.0, 0.7).value == pytest.approx(-0.5)


def test_faithfulness_warns_where_its_denominator_is_small():
    """0.97 points, as in the paper, is under one."""
    small = causal_faithfulness(0.7176, 0.7116, 0.7079)
    assert small.value is None
    assert "0.97" in small.warning


def test_loss_changes_that_follow_retraining_correlate():
    """A monotone but curved relation: Spearman 1, Pearson below."""
    true = np.array([0.1, 0.2, 0.4, 0.8])
    found = loss_change_correlation(np.zeros(4), true**3, true)
    assert found.spearman == pytest.approx(1)
    assert 0.8 < found.pearson < 1
    assert loss_change_correlation(np.zeros(4), -true, true).pearson == pytest.approx(-1)


def test_what_cannot_be_compared_is_refused():
    """Shapes, empty arrays, constant changes, a zero model."""
    with pytest.raises(DataError):
        kl_divergence(np.zeros((2, 3)), np.zeros((3, 3)))
    with pytest.raises(DataError):
        logit_mse(np.zeros((0, 3)), np.zeros((0, 3)))
    with pytest.raises(DataError):
        loss_change_correlation(np.zeros(3), np.ones(3), np.arange(3.0))
    with pytest.raises(DataError):
        parameter_gap(np.zeros(2), np.ones(2))
