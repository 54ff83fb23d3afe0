"""What must hold of the threshold attacks whatever the numbers are; the SVM against one written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.svm import SVC

from unlearning.verification.membership_inference import confidence_attack
from unlearning.verification.thresholds import Scored, correctness_attack, threshold_attack

SEEDS = st.integers(0, 2**31 - 1)
SIZES = st.integers(4, 40)


def scored(scores, labels) -> Scored:
    return Scored(np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.int64))


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


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.randoms())
def test_correctness_has_no_power_over_equals_whatever_their_order(right, random):
    """The same shares right: exactly one half; all right against all wrong: one."""
    members = np.array(right, dtype=np.float64)
    others = np.array(random.sample(right, len(right)), dtype=np.float64)
    assert correctness_attack(members, others, members).balanced_accuracy == 0.5
    ones = np.ones(len(right))
    assert correctness_attack(ones, 0 * ones, ones).balanced_accuracy == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_the_confidence_attack_is_scikit_learns_machine_on_the_kernel_written_out(seed):
    """K(x, y) = exp(−(x − y)²), C = 3, as many members as others: the share that such a machine calls members."""
    generator = np.random.default_rng(seed)
    retained, test, forget = generator.beta(5, 1, 40), generator.beta(2, 2, 40), generator.beta(3, 2, 60)
    known = np.concatenate([retained, test])
    kernel = np.exp(-((known[:, None] - known[None]) ** 2))
    machine = SVC(C=3, kernel="precomputed").fit(kernel, np.repeat([1, 0], 40))
    called = machine.predict(np.exp(-((forget[:, None] - known[None]) ** 2))) == 1
    assert confidence_attack(retained, test, forget, seed=seed).score == pytest.approx(called.mean())
