"""U-LiRA by hand, against guessing, and under a constant shift."""

import numpy as np
import pytest

from benchmarks.bench.u_lira import centred, mixed, u_lira, u_lira_of_shadows, vulnerability
from unlearning.errors import DataError


def test_each_half_is_judged_by_the_other_halfs_gaussians():
    """By hand, one example: unlearned 9, 10, 11, 12, others 0, 1, 2, −9.

    Fitted to the even ones: N(10, 1) and N(1, 1): 10 and 12 are called unlearned, 1 and −9 not. Fitted to the odd ones:
    N(11, 1) and N(−4, 25): 9 and 11 are called unlearned; 0 and 2 not, for (2 − 11)² / 1 > (2 + 4)² / 25.
    """
    found = u_lira(np.array([[9.0], [10], [11], [12]]), np.array([[0.0], [1], [2], [-9]]))
    assert found.balanced_accuracy == 1
    assert found.tpr == 1


def test_a_wrong_half_lowers_the_accuracy():
    """By hand: 1 among the unlearned is called one of the others, N(1, 1) in both halves: 3 of 4 and 4 of 4."""
    unlearned = np.array([[9.0], [10], [11], [1]])
    never = np.array([[0.0], [0], [2], [2]])
    assert u_lira(unlearned, never).accuracies == pytest.approx([(3 / 4 + 1) / 2])


def test_between_two_sets_of_oracles_it_guesses():
    """Within four standard errors of one half, and the true positives are those of chance."""
    generator = np.random.default_rng(2)
    found = u_lira(*generator.normal(size=(2, 40, 500)))
    assert found.balanced_accuracy == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(2 * 40 * 500))
    assert found.tpr < 0.03


def test_each_example_has_an_attacker_of_its_own():
    """Half of the examples are known better, half worse: in the mean nothing moved, and yet all are found."""
    generator = np.random.default_rng(3)
    oracles = generator.normal(size=(40, 100))
    unlearned = generator.normal(size=(40, 100)) + np.where(np.arange(100) % 2, 6.0, -6.0)
    assert abs(unlearned.mean() - oracles.mean()) < 0.2
    assert u_lira(unlearned, oracles).balanced_accuracy > 0.99


def test_a_constant_shift_looks_like_memory_until_it_is_taken_off():
    """All margins 6 higher, of test examples too: found in every example, and in none when centred."""
    generator = np.random.default_rng(4)
    sides = [
        (generator.normal(size=(40, 100)) + shift, generator.normal(size=(40, 300)) + shift)
        for shift in (6.0, 0.0)
    ]
    assert u_lira(sides[0][0], sides[1][0]).balanced_accuracy > 0.99
    plain = u_lira(*(centred(forget, test) for forget, test in sides))
    assert plain.balanced_accuracy == pytest.approx(0.5, abs=0.03)


def test_too_few_models_are_refused():
    """Two in each half are the fewest with a variance."""
    with pytest.raises(DataError):
        u_lira(np.zeros((3, 1)), np.zeros((4, 1)))


def test_vulnerable_is_what_the_model_before_gives_away():
    """By hand: means 4 and 1, deviations 1 and 1, and 3 and 4: 3 and 3 / √12.5; the same: 0."""
    trained = np.array([[3.0, 1, 0], [5, 7, 2]])
    never = np.array([[0.0, -3, 0], [2, 5, 2]])
    assert vulnerability(trained, never) == pytest.approx([3, 3 / np.sqrt(12.5), 0])
    most, least = mixed(vulnerability(trained, never), 1 / 3)
    assert (most.tolist(), least.tolist()) == ([0], [2])


def test_the_ends_never_meet():
    """Half of three examples at each end would be two and two; they are one and one."""
    most, least = mixed(np.array([3.0, 1, 2]), 1.0)
    assert (most.tolist(), least.tolist()) == ([0], [1])


HAD = np.array([[True], [False]] * 4)
"""Of one example and four pairs of shadow federations, the first of each had it."""


def test_pairs_of_shadow_federations_are_judged_by_the_other_pairs():
    """By hand, one example and one variance for each side, both 1: the boundary is the mean of the two means.

    Even pairs (4, 0) and (6, 2): means 5 and 1, boundary 3. Odd pairs (3.5, 2) and (5.5, 4): means 4.5 and 3, boundary
    3.75. The odd are judged by 3: 3.5, 5.5 rightly had; 2 rightly had not, 4 wrongly. The even by 3.75: all rightly.
    """
    margins = np.array([[4.0], [0], [3.5], [2], [6], [2], [5.5], [4]])
    found = u_lira_of_shadows(margins, HAD)
    assert found.accuracies == pytest.approx([7 / 8])
    assert found.balanced_accuracy == pytest.approx(7 / 8)


def test_a_constant_shift_of_unlearned_shadows_is_in_both_sides():
    """Where a method moves all margins alike there is nothing to find, as in the paper's form."""
    generator = np.random.default_rng(5)
    first = generator.permuted(np.tile(np.arange(100) < 50, (20, 1)), axis=1)
    had = np.stack([first, ~first], axis=1).reshape(40, 100)
    noise = generator.normal(size=(40, 100)) - 6
    assert u_lira_of_shadows(noise, had).balanced_accuracy == pytest.approx(0.5, abs=0.04)
    assert u_lira_of_shadows(noise, had).tpr < 0.03
    assert u_lira_of_shadows(noise + 8 * had, had).balanced_accuracy > 0.99


@pytest.mark.parametrize("had", [HAD[:6], HAD[:7], np.array([[True], [True]] * 4)])
def test_shadow_federations_that_are_no_pairs_are_refused(had):
    """Three pairs, an odd one out, and two that both had the example."""
    with pytest.raises(DataError):
        u_lira_of_shadows(np.zeros(had.shape), had)
