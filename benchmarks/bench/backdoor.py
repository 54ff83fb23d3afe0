"""A backdoor to test unlearning with: if a client plants one and is forgotten, the trigger must lose its power.

A trigger is a square patch in the lower right corner of an image. The planted examples carry it together with
the attacker's label; the attack has success on an example of another class that, once stamped, is classified
as that label.

Source: Gu et al., BadNets, for the patch; HF-KCU, Table 3, for the measure on a forgotten client.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unlearning.errors import DataError
from unlearning.tasks.task import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A patch of `side` x `side` pixels of `value` (in the inputs' own scale), and the label that it means."""

    label: int
    value: float
    side: int = 4


def stamp(inputs: Tensor, trigger: Trigger) -> Tensor:
    """Return images (n, channels, height, width) with the patch in the lower right corner; the given ones stay.

    Raises:
        DataError: the inputs are no images, or the patch does not fit into them.
    """
    if inputs.ndim != 4 or not 1 <= trigger.side <= min(inputs.shape[-2:]):
        raise DataError(
            f"A patch of {trigger.side} x {trigger.side} pixels needs images (n, channels, height, width) of at "
            f"least that size, got shape {tuple(inputs.shape)}."
        )
    marked = inputs.clone()
    marked[..., -trigger.side :, -trigger.side :] = trigger.value
    return marked


def poison(
    examples: Examples, trigger: Trigger, share: float, generator: np.random.Generator
) -> tuple[Examples, NDArray[np.bool_]]:
    """Return the examples with a random `share` of them stamped and relabelled, and which ones (n,).

    The number is rounded; ids and order stay.

    Raises:
        DataError: `share` lies outside 0 to 1, or see `stamp`.
    """
    if not 0 <= share <= 1:
        raise DataError(f"The share of poisoned examples must be 0 to 1, got {share}.")
    chosen = generator.permutation(len(examples))[: round(share * len(examples))]
    inputs, targets = examples.inputs.clone(), examples.targets.clone()
    inputs[chosen] = stamp(examples.inputs[chosen], trigger)
    targets[chosen] = trigger.label
    mask = np.zeros(len(examples), dtype=np.bool_)
    mask[chosen] = True
    return Examples(inputs, targets, examples.ids), mask


def triggered_test(examples: Examples, trigger: Trigger) -> Examples:
    """Return the examples of all other classes, stamped, with their true labels.

    Raises:
        DataError: no example is of another class, or see `stamp`.
    """
    others = examples.select(examples.targets.numpy() != trigger.label)
    if len(others) == 0:
        raise DataError(
            f"Every test example is of class {trigger.label}; success of the attack needs another one."
        )
    return Examples(stamp(others.inputs, trigger), others.targets, others.ids)


def attack_success_rate(
    predicted: NDArray[np.integer], labels: NDArray[np.integer], trigger_label: int
) -> float:
    """Return the share, in [0, 1], of stamped examples of other classes that are classified as `trigger_label`.

    predicted, labels: the predicted and true classes (n,) of stamped examples; those whose true class is
    `trigger_label` are not counted.

    Raises:
        DataError: the two differ in shape, or no example is of another class.
    """
    if predicted.shape != labels.shape or predicted.ndim != 1:
        raise DataError(
            f"Predicted and true classes must be two arrays (n,), got {predicted.shape} and {labels.shape}."
        )
    others = labels != trigger_label
    if not others.any():
        raise DataError(
            f"No stamped example is of another class than {trigger_label}; the attack success rate has no meaning."
        )
    return float(np.mean(predicted[others] == trigger_label))
