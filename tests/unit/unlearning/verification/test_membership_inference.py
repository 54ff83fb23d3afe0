"""The membership attacks, on arrays whose answer is known."""

import numpy as np
import pytest
from sklearn.svm import SVC

from unlearning.errors import DataError
from unlearning.verification.membership_inference import confidence_attack


def values(*numbers: float):
    return np.array(numbers, dtype=np.float64)


def separable():
    generator = np.random.default_rng(0)
    return generator.uniform(0.9, 1.0, 60), generator.uniform(0.0, 0.3, 40)


@pytest.mark.parametrize(
    ("forget", "share"), [((0.95, 0.96), 1), ((0.1, 0.2), 0), ((0.95, 0.1, 0.2, 0.05), 0.25)]
)
def test_examples_as_confident_as_the_members_are_called_members(forget, share):
    """Members sit near 1, others near 0.15: 0.95 is a member, 0.1 is not; the held-out half is told apart too."""
    found = confidence_attack(*separable(), values(*forget), seed=0)
    assert (found.called.mean(), found.balanced_accuracy) == (share, 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_the_confidence_attack_is_scikit_learns_machine_on_the_kernel_written_out(seed):
    """K(x, y) = exp(−(x − y)²), C = 3, as many members as others: the share that such a machine calls members."""
    generator = np.random.default_rng(seed)
    retained, test, forget = generator.beta(5, 1, 40), generator.beta(2, 2, 40), generator.beta(3, 2, 60)
    known = np.concatenate([retained, test])
    kernel = np.exp(-((known[:, None] - known[None]) ** 2))
    machine = SVC(C=3, kernel="precomputed").fit(kernel, np.repeat([1, 0], 40))
    called = machine.predict(np.exp(-((forget[:, None] - known[None]) ** 2))) == 1
    np.testing.assert_array_equal(confidence_attack(retained, test, forget, seed=seed).called, called)


def test_an_attack_on_equal_confidences_has_no_power():
    """If members and others look alike, the attack guesses: exactly one half."""
    same = np.full(40, 0.7)
    assert confidence_attack(same, same, values(0.7), seed=0).balanced_accuracy == 0.5


def test_power_is_measured_on_examples_the_attack_did_not_learn_from():
    """On pure noise an attack judged on the few examples it learnt from would look strong."""
    generator = np.random.default_rng(3)
    powers = [
        confidence_attack(generator.random(6), generator.random(6), values(0.5), seed=k).balanced_accuracy
        for k in range(150)
    ]
    assert abs(float(np.mean(powers)) - 0.5) < 0.05  # three standard errors of the mean


def test_many_members_do_not_outvote_few_others():
    """Unbalanced, a thousand members would win the overlap; balanced, the others' region stays theirs."""
    generator = np.random.default_rng(0)
    retained = np.concatenate([generator.uniform(0.8, 1.0, 900), generator.uniform(0.4, 0.6, 100)])
    test = generator.uniform(0.4, 0.6, 20)
    assert confidence_attack(retained, test, np.full(5, 0.5), seed=0).called.mean() == 0.0


def test_the_seed_alone_decides_the_subsample():
    """The same seed gives the same result."""
    generator = np.random.default_rng(1)
    retained, test, forget = generator.random(200), generator.random(30), generator.random(50)
    found = [
        confidence_attack(retained, test, forget, seed=seed).called.tolist() for seed in (5, 5, *range(4))
    ]
    assert found[0] == found[1]
    assert len(set(map(tuple, found))) > 1


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("bad", [values(), values(0.1, np.nan, 0.2)], ids=["empty", "nan"])
def test_the_confidence_attack_refuses_empty_and_non_finite_input(position, bad):
    """Each of its three inputs is checked."""
    arrays = [values(0.9, 0.8), values(0.1, 0.2), values(0.5)]
    arrays[position] = bad
    with pytest.raises(DataError):
        confidence_attack(*arrays, seed=0)
