"""Which classes were deleted, against cases worked out by hand."""

import numpy as np
import pytest

from benchmarks.difference.class_shares import shares_by_head, shares_by_predictions


def test_the_classes_whose_outputs_fall_were_deleted():
    """At h = (1, 2): ΔW h + Δb = (−3, −1, 4), of mean 0, so the falls are 3 and 1 and the shares ¾ and ¼."""
    weights = np.array([[-1.0, -1.0], [1.0, -1.5], [0.0, 1.5]])
    shares = shares_by_head(weights, np.array([0.0, 1.0, 1.0]), np.array([1.0, 2.0]))
    assert shares == pytest.approx([0.75, 0.25, 0.0])


def test_a_shift_of_all_outputs_says_nothing():
    """The same change of every class gives each the same share."""
    assert shares_by_head(np.zeros((2, 1)), np.array([-5.0, -5.0]), np.zeros(1)) == pytest.approx([0.5, 0.5])


def test_predictions_show_the_same():
    """The logarithm of class 0 falls by log 2, that of class 1 rises by log 1.5: all of the fall is class 0's."""
    shares = shares_by_predictions(np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]]))
    assert shares == pytest.approx([1.0, 0.0])
