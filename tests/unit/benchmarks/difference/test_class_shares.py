"""Which classes were deleted, against cases worked out by hand."""

import numpy as np
import pytest

from benchmarks.difference.class_shares import shares_by_predictions


def test_the_classes_whose_outputs_fall_were_deleted():
    """Logarithms change by (−3, −1, 4), of mean 0, so the falls are 3 and 1 and the shares ¾ and ¼."""
    before = np.full((2, 3), 0.01)
    after = before * np.exp([-3.0, -1.0, 4.0])
    assert shares_by_predictions(before, after) == pytest.approx([0.75, 0.25, 0.0])


def test_predictions_that_stay_say_nothing():
    """Each class has the same share."""
    same = np.array([[0.3, 0.7]])
    assert shares_by_predictions(same, same) == pytest.approx([0.5, 0.5])


def test_of_two_classes_the_one_that_falls_was_deleted():
    """The logarithm of class 0 falls by log 2, that of class 1 rises by log 1.5."""
    shares = shares_by_predictions(np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]]))
    assert shares == pytest.approx([1.0, 0.0])
