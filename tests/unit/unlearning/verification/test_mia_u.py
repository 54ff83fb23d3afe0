"""MIA-U's five constructions; what the attack finds is in test_attacks_on_demand.py."""

import numpy as np
import pytest

from unlearning.errors import DataError
from unlearning.verification.figures import Construction
from unlearning.verification.mia_u import construct, judge

BEFORE = np.array([[0.2, 0.7, 0.1]])
AFTER = np.array([[0.5, 0.4, 0.1]])


@pytest.mark.parametrize(
    ("construction", "expected"),
    [
        (Construction.DIRECT_DIFFERENCE, [-0.3, 0.3, 0.0]),
        (Construction.SORTED_DIFFERENCE, [0.3, -0.3, 0.0]),
        (Construction.DIRECT_CONCAT, [0.2, 0.7, 0.1, 0.5, 0.4, 0.1]),
        (Construction.SORTED_CONCAT, [0.7, 0.2, 0.1, 0.4, 0.5, 0.1]),
        (Construction.EUCLIDEAN, [0.18**0.5]),
    ],
)
def test_each_construction_by_hand(construction, expected):
    """Sorted means: both in the order of the posterior before, highest first."""
    np.testing.assert_allclose(construct(BEFORE, AFTER, construction), [expected], atol=1e-12)


@pytest.mark.parametrize(
    ("before", "after"),
    [(BEFORE, AFTER[:, :2]), (BEFORE[0], AFTER[0]), (BEFORE, np.full((1, 3), np.nan))],
    ids=["classes", "one-dimensional", "nan"],
)
def test_posteriors_that_do_not_fit_are_refused(before, after):
    """A pair is of one example."""
    with pytest.raises(DataError):
        construct(before, after, Construction.DIRECT_CONCAT)


def test_too_few_examples_to_learn_from_are_refused():
    """Two to learn from and two to judge by, of each kind."""
    three, many = np.full((3, 4), 0.25), np.full((30, 4), 0.25)
    with pytest.raises(DataError):
        judge((three, three), (many, many), Construction.EUCLIDEAN, seed=0, weights=np.ones(30))
