"""MIA-U's five constructions, and what the attack finds."""

import numpy as np
import pytest

from unlearning.errors import DataError
from unlearning.verification.discrimination import discriminate
from unlearning.verification.mia_u import Construction, construct, distances, judge

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


def test_every_construction_is_tried_above():
    """A sixth one would need its own line."""
    assert len(Construction) == 5


def posteriors(generator, count):
    return generator.dirichlet(np.ones(4), size=count)


@pytest.mark.parametrize("construction", list(Construction))
def test_deleted_examples_that_changed_are_found(construction):
    """The deleted went from sure to flat, the others stayed: nearly perfect; the classes are mixed."""
    generator = np.random.default_rng(0)
    sure = 0.05 + 0.8 * np.eye(4)[generator.integers(0, 4, 120)]
    flat = np.full((120, 4), 0.25)
    stay = posteriors(generator, 120)
    mine, theirs = judge((sure, flat), (stay, stay), construction, seed=0)
    assert discriminate(mine.scores, theirs.scores, seed=0).auc.low > 0.9


@pytest.mark.parametrize("construction", list(Construction))
def test_what_changed_alike_is_not_found(construction):
    """Same distribution before and after, 150 of each judged: 0.5 within four standard errors."""
    generator = np.random.default_rng(1)
    pairs = [(posteriors(generator, 300), posteriors(generator, 300)) for _ in range(2)]
    mine, theirs = judge(*pairs, construction, seed=0)
    assert abs(discriminate(mine.scores, theirs.scores, seed=0).auc.value - 0.5) < 0.14


def test_the_distance_is_the_fifth_construction():
    """One number an example."""
    np.testing.assert_allclose(distances(BEFORE, AFTER), [0.18**0.5])


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
    generator = np.random.default_rng(0)
    three, many = posteriors(generator, 3), posteriors(generator, 30)
    with pytest.raises(DataError):
        judge((three, three), (many, many), Construction.EUCLIDEAN, seed=0)
