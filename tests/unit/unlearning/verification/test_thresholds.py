"""Song and Mittal's threshold attacks against numbers worked out by hand."""

from itertools import product
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy

from unlearning.errors import DataError
from unlearning.verification.thresholds import (
    Scored,
    best_threshold,
    class_thresholds,
    correctness_attack,
    entropy,
    modified_entropy,
    threshold_attack,
)


def values(*numbers: float):
    return np.array(numbers, dtype=np.float64)


def scored(scores, labels=None) -> Scored:
    given_labels = np.zeros(len(scores)) if labels is None else labels
    return Scored(np.asarray(scores, dtype=np.float64), np.asarray(given_labels, dtype=np.int64))


POSTERIORS = np.array([[0.7, 0.2, 0.1], [0.25, 0.25, 0.5]])
SMALL = st.lists(st.integers(0, 5).map(float), min_size=1, max_size=8)
SEEDS = st.integers(0, 2**31 - 1)
SIZES = st.integers(4, 40)


def test_entropy_is_scipys():
    """Natural logarithm, one value a row."""
    np.testing.assert_allclose(entropy(POSTERIORS), scipy_entropy(POSTERIORS, axis=1))


def test_modified_entropy_by_hand():
    """Row 0 with y = 0: −0.3 log 0.7 − 0.2 log 0.8 − 0.1 log 0.9; with y = 2 the first term dominates."""
    right = -0.3 * log(0.7) - 0.2 * log(0.8) - 0.1 * log(0.9)
    wrong = -0.9 * log(0.1) - 0.7 * log(0.3) - 0.2 * log(0.8)
    np.testing.assert_allclose(
        modified_entropy(POSTERIORS[[0, 0]], np.array([0, 2])), [right, wrong], rtol=1e-12
    )


def test_the_modified_entropy_of_very_sure_answers_stays_apart():
    """With 1 − p_y = q, far below what 1 − p can hold, M = 2q²: −q·log(1−q) for y and the same for the other class."""
    rest = np.array([1e-18, 1e-12])
    found = modified_entropy(np.stack([np.ones(2), rest], axis=1), np.array([0, 0]))
    np.testing.assert_allclose(found, 2 * rest**2, rtol=1e-6)


def test_a_sure_wrong_answer_has_no_entropy_but_much_modified_entropy():
    """What the modification is for; a sure right answer has neither."""
    sure = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert entropy(sure).tolist() == [0.0, 0.0]
    right, wrong = modified_entropy(sure, np.array([0, 1]))
    assert right == 0.0
    assert wrong > 100


@given(SMALL, SMALL)
def test_no_threshold_has_a_better_balanced_accuracy(members, others):
    """Against every threshold there is; equal ones are higher or the same."""

    def accuracy(threshold: float) -> float:
        return float(np.mean(np.array(members) >= threshold) + np.mean(np.array(others) < threshold))

    chosen = best_threshold(np.array(members), np.array(others))
    candidates = sorted({*members, *others})
    best = max(map(accuracy, candidates))
    assert accuracy(chosen) == pytest.approx(best)
    assert chosen == max(value for value in candidates if accuracy(value) == pytest.approx(best))


def test_each_class_has_a_threshold_of_its_own():
    """Class 0 is separated at 5, class 1 at 0.5; class 2 has no other and takes the common one, 0.5."""
    members, others = scored([5, 6, 0.5, 7], [0, 0, 1, 2]), scored([3, 4, 0.1, 0.2], [0, 0, 1, 1])
    np.testing.assert_array_equal(
        class_thresholds(members, others, np.array([0, 1, 2])), [5.0, 0.5, best_threshold(
            members.scores, others.scores)])  # fmt: skip


def test_an_example_is_judged_by_its_own_class():
    """A score of 1 is a member's in class 1 and not in class 0."""
    members = scored([5, 6, 5, 6, 0.5, 0.6, 0.5, 0.6], [0, 0, 0, 0, 1, 1, 1, 1])
    others = scored([3, 4, 3, 4, 0.1, 0.2, 0.1, 0.2], [0, 0, 0, 0, 1, 1, 1, 1])
    result = threshold_attack(members, others, scored([1, 1, 5.5], [0, 1, 0]), seed=0)
    assert result.called.tolist() == [False, True, True]


@given(SEEDS, SIZES)
def test_thresholds_ask_for_no_order(seed, size):
    """Members and others may come in any order; the answers come in the order of who is asked about."""
    generator = np.random.default_rng(seed)
    sides = [(generator.normal(size=size), generator.integers(0, 3, size)) for _ in range(3)]
    orders = [generator.permutation(size) for _ in range(3)]
    straight = threshold_attack(*(scored(*side) for side in sides), seed=0)
    mixed = threshold_attack(
        *(
            scored(scores[order], labels[order])
            for (scores, labels), order in zip(sides, orders, strict=True)
        ),
        seed=0,
    )
    np.testing.assert_array_equal(straight.called[orders[2]], mixed.called)


@given(SEEDS, SIZES)
def test_thresholds_tell_all_apart_where_every_member_is_above_every_other(seed, size):
    """Every member is called one and no other is; each class has a scale of its own."""
    generator = np.random.default_rng(seed)
    labels = [np.concatenate([np.arange(3), generator.integers(0, 3, size)]) for _ in range(2)]
    members = scored(100 * labels[0] + generator.uniform(2, 3, size + 3), labels[0])
    others = scored(100 * labels[1] + generator.uniform(0, 1, size + 3), labels[1])
    assert threshold_attack(members, others, members, seed=0).called.all()
    assert not threshold_attack(members, others, others, seed=0).called.any()


@given(SEEDS, st.integers(8, 40))
def test_thresholds_have_full_power_where_members_score_alike_and_above(seed, size):
    """One half of both suffices to learn the threshold for the other half."""
    assert threshold_attack(
        scored(np.full(size, 2.0), np.zeros(size)),
        scored(np.random.default_rng(seed).uniform(0, 1, size), np.zeros(size)),
        scored([2.0], [0]),
        seed=seed,
    ).balanced_accuracy == pytest.approx(1.0)


def test_thresholds_have_no_power_over_one_distribution_in_any_class():
    """Three classes, 200 draws: one half on average, within four standard errors of the draws' own spread."""
    generator = np.random.default_rng(3)
    powers = []
    for seed in range(200):
        sides = [scored(generator.normal(size=60), generator.integers(0, 3, 60)) for _ in range(2)]
        powers.append(threshold_attack(*sides, sides[0], seed=seed).balanced_accuracy)
    assert abs(np.mean(powers) - 0.5) < 4 * np.std(powers) / np.sqrt(200)


def test_correctness_calls_what_is_right():
    """Members 3 of 4 right, others 1 of 4: (3/4 + 3/4)/2."""
    result = correctness_attack(values(1, 1, 1, 0), values(1, 0, 0, 0), values(1, 0))
    assert result.called.tolist() == [True, False]
    assert result.balanced_accuracy == 0.75


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.randoms())
def test_correctness_has_no_power_over_equals_whatever_their_order(right, random):
    """The same shares right: exactly one half; all right against all wrong: one."""
    members = np.array(right, dtype=np.float64)
    others = np.array(random.sample(right, len(right)), dtype=np.float64)
    assert correctness_attack(members, others, members).balanced_accuracy == 0.5
    ones = np.ones(len(right))
    assert correctness_attack(ones, 0 * ones, ones).balanced_accuracy == 1.0


@pytest.mark.parametrize("sizes", list(product([0, 3], repeat=3))[:-1])
def test_a_missing_side_is_an_error(sizes):
    """No share is made up of nothing."""
    members, others, forgotten = (scored(np.ones(size)) for size in sizes)
    with pytest.raises(DataError):
        threshold_attack(members, others, forgotten, seed=0)
    with pytest.raises(DataError):
        correctness_attack(members.scores, others.scores, forgotten.scores)


@pytest.mark.parametrize("sizes", [(1, 2, 1), (2, 1, 1), (2, 2, 0)])
def test_thresholds_are_not_learnt_from_one_example(sizes):
    """Half of a side measures the attack's power, so a side of one has nothing to learn from."""
    members, others, forgotten = (scored(np.ones(size)) for size in sizes)
    with pytest.raises(DataError):
        threshold_attack(members, others, forgotten, seed=0)
    threshold_attack(scored([1.0, 1.0]), scored([0.0, 0.0]), scored([1.0]), seed=0)


@pytest.mark.parametrize(
    "posteriors",
    [np.array([[0.7, 0.7]]), np.array([[1.5, -0.5]]), np.array([0.5, 0.5]), np.array([[np.nan, 1.0]])],
    ids=["sum", "negative", "one-dimensional", "nan"],
)
def test_what_is_no_posterior_is_refused(posteriors):
    """Logits given by mistake are found out."""
    with pytest.raises(DataError):
        entropy(posteriors)


@pytest.mark.parametrize("labels", [[0], [0, 3], [-1, 0]], ids=["short", "beyond", "negative"])
def test_labels_that_are_no_classes_are_refused(labels):
    """A label indexes the posterior."""
    with pytest.raises(DataError):
        modified_entropy(POSTERIORS, np.array(labels))


@pytest.mark.parametrize("scores", [[np.nan, 1.0], [1.0]], ids=["nan", "short"])
def test_scores_must_be_numbers_and_fit_their_classes(scores):
    """Each score has a class."""
    with pytest.raises(DataError):
        Scored(np.array(scores), np.array([0, 1]))
