"""Two-model membership against cases worked out by hand."""

import numpy as np
import pytest

from unlearning.errors import DataError
from unlearning.verification.difference.membership import (
    fall_of_confidence,
    losses_of,
    rise_of_loss,
)


def test_the_loss_rises_by_the_logarithm_of_the_ratio():
    """p_y from ½ to ¼ is log 2; from ¼ to ½ the same with the other sign."""
    before, after = np.array([[0.5, 0.5], [0.75, 0.25]]), np.array([[0.25, 0.75], [0.5, 0.5]])
    rise = rise_of_loss(before, after, np.array([0, 1]))
    assert rise == pytest.approx([np.log(2), -np.log(2)], rel=1e-12)


def test_a_loss_next_to_zero_keeps_its_digits():
    """p = (1, 1e-12) has the loss 1e-12 for class 0, although 1 − p_y is rounded to 0 in float32."""
    posteriors = np.array([[1.0, 1e-12]], dtype=np.float32)
    assert losses_of(posteriors, np.array([0])) == pytest.approx([1e-12], rel=1e-6, abs=0)


def test_the_confidence_falls_by_the_difference():
    """0.9 to 0.2 is 0.7."""
    fall = fall_of_confidence(np.array([[0.9, 0.1]]), np.array([[0.2, 0.8]]), np.array([0]))
    assert fall == pytest.approx([0.7])


def test_a_label_that_is_no_class_is_refused():
    """Two posteriors have the classes 0 and 1."""
    with pytest.raises(DataError):
        losses_of(np.array([[0.5, 0.5]]), np.array([2]))
