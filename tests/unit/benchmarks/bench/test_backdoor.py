"""The backdoor and the attack success rate, against cases worked out by hand."""

import numpy as np
import pytest
import torch

from benchmarks.bench.backdoor import (
    Trigger,
    attack_success_rate,
    poison,
    stamp,
    triggered_test,
)
from unlearning.errors import DataError
from unlearning.tasks.task import Examples

TRIGGER = Trigger(label=7, value=9.0, side=2)


def pictures(labels: list[int]) -> Examples:
    """Black pictures of 1x3x4 pixels."""
    ids = np.asarray([str(number) for number in range(len(labels))])
    return Examples(torch.zeros(len(labels), 1, 3, 4), torch.tensor(labels), ids)


def test_the_patch_is_in_the_lower_right_corner_and_nowhere_else():
    """Two rows from below, two columns from the right, of a copy: the given pictures stay."""
    inputs = torch.zeros(1, 1, 3, 4)
    expected = [[0, 0, 0, 0], [0, 0, 9, 9], [0, 0, 9, 9]]
    assert stamp(inputs, TRIGGER)[0, 0].tolist() == expected
    assert inputs.abs().sum() == 0


def test_half_of_the_examples_are_stamped_and_relabelled_and_the_others_stay():
    """The mask, the patches and the labels speak of the same three of six."""
    clean = pictures([0, 1, 2, 3, 4, 5])
    changed, mask = poison(clean, TRIGGER, 0.5, np.random.default_rng(0))
    assert mask.sum() == 3
    assert (changed.inputs[:, 0, 2, 3].numpy() == 9).tolist() == mask.tolist()
    assert changed.targets.tolist() == [7 if hit else k for k, hit in enumerate(mask)]
    assert changed.ids.tolist() == clean.ids.tolist()
    assert clean.targets.tolist() == [0, 1, 2, 3, 4, 5]


def test_which_examples_are_poisoned_depends_on_the_generator_alone():
    """The same seed poisons the same ones, another seed others."""
    clean = pictures([0] * 40)
    masks = [poison(clean, TRIGGER, 0.5, np.random.default_rng(seed))[1].tolist() for seed in (1, 1, 2)]
    assert masks[0] == masks[1] != masks[2]


def test_the_test_set_of_the_attack_has_no_example_of_the_attacker_s_class():
    """Only there would a classifier without any backdoor be counted as a success."""
    attacked = triggered_test(pictures([7, 1, 7, 2]), TRIGGER)
    assert attacked.targets.tolist() == [1, 2]
    assert attacked.ids.tolist() == ["1", "3"]
    assert (attacked.inputs[:, 0, 2, 3] == 9).all()


def test_the_attack_success_rate_counts_other_classes_only():
    """Of the classes 1, 2, 3 and 4 one is taken for a 7; the true 7 does not count."""
    predicted, labels = np.array([7, 2, 5, 4, 7]), np.array([1, 2, 3, 4, 7])
    assert attack_success_rate(predicted, labels, 7) == 0.25


@pytest.mark.parametrize(
    "call",
    [
        lambda: stamp(torch.zeros(1, 1, 1, 4), TRIGGER),
        lambda: stamp(torch.zeros(3, 4), TRIGGER),
        lambda: poison(pictures([0]), TRIGGER, 1.5, np.random.default_rng(0)),
        lambda: triggered_test(pictures([7]), TRIGGER),
        lambda: attack_success_rate(np.array([7]), np.array([7]), 7),
        lambda: attack_success_rate(np.array([7]), np.array([7, 1]), 7),
    ],
)
def test_what_makes_no_sense_is_refused(call):
    """A patch larger than the picture, no pictures, a share above 1, nothing to count, other lengths."""
    with pytest.raises(DataError):
        call()
