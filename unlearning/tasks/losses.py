"""Losses and measures of classification, segmentation, binary labels and regression.

For each kind the loss is the mean over the batch of the per-example loss, so means over batches of
any sizes, weighted by examples, agree with the mean over the data set.

Logits are (n, classes) with targets (n,), or (n, classes, h, w) with targets (n, h, w).
"""

import torch
from torch import Tensor
from torch.nn import functional

from unlearning.errors import AppError

DICE_SMOOTHING = 1.0
"""Added to both sides of the soft Dice fraction in pixels: an empty mask has a gradient too."""


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return mean cross entropy in nats, a scalar."""
    return functional.cross_entropy(logits, targets)


def classification_measures(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return cross entropy, whether the arg-max is right (0 or 1), probability of the true class: each (n,)."""
    loss = functional.cross_entropy(logits, targets, reduction="none")
    correct = (logits.argmax(dim=1) == targets).to(logits.dtype)
    return loss, correct, torch.exp(-loss)


def cross_entropy_and_dice(logits: Tensor, targets: Tensor) -> Tensor:
    """Return mean over examples of the pixels' mean cross entropy plus 1 − soft Dice, a scalar.

    Soft Dice is taken for each example and foreground class (every class but 0) and averaged.
    Source: Milletari et al., V-Net, for the soft Dice loss; PUF's segmentation experiment for the sum.
    """
    return _segmentation_loss(logits, targets).mean()


def segmentation_measures(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, Dice coefficient of the arg-max, mean probability of the true class: each (n,).

    The Dice coefficient is averaged over the foreground classes; a class that neither the prediction
    nor the mask contains counts as 1, a perfect answer.
    """
    predicted = functional.one_hot(logits.argmax(dim=1), logits.shape[1]).movedim(-1, 1)[:, 1:]
    actual = _one_hot(targets, logits)[:, 1:]
    overlap = 2 * (predicted * actual).sum(dim=(2, 3))
    size = (predicted + actual).sum(dim=(2, 3))
    dice = torch.where(size > 0, overlap / size.clamp(min=1), 1.0).mean(dim=1)
    true_class = torch.softmax(logits, dim=1).gather(1, targets.unsqueeze(1))
    return _segmentation_loss(logits, targets), dice, true_class.mean(dim=(1, 2, 3))


def _segmentation_loss(logits: Tensor, targets: Tensor) -> Tensor:
    pixels = functional.cross_entropy(logits, targets, reduction="none").mean(dim=(1, 2))
    probable = torch.softmax(logits, dim=1)[:, 1:]
    actual = _one_hot(targets, logits)[:, 1:]
    overlap = 2 * (probable * actual).sum(dim=(2, 3)) + DICE_SMOOTHING
    size = (probable + actual).sum(dim=(2, 3)) + DICE_SMOOTHING
    return pixels + 1 - (overlap / size).mean(dim=1)


def _one_hot(targets: Tensor, logits: Tensor) -> Tensor:
    """Return targets (n, h, w) as 0 and 1 of shape (n, classes, h, w), in the dtype of the logits."""
    return functional.one_hot(targets, logits.shape[1]).movedim(-1, 1).to(logits.dtype)


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean binary cross entropy in nats, a scalar; logits and targets (n, ...) of one shape, targets 0 to 1.

    For one logit an example, or one for each of several labels.
    """
    return _binary_losses(logits, targets).mean()


def binary_measures(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean binary cross entropy e, share of labels on the right side of ½, and exp(−e): each (n,)."""
    loss = _binary_losses(logits, targets)
    right = ((logits > 0) == (targets > 0.5)).to(logits.dtype).reshape(len(targets), -1).mean(dim=1)
    return loss, right, torch.exp(-loss)


def _binary_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean binary cross entropy over the labels of each example (n,).

    Raises:
        AppError: logits and targets differ in shape.
    """
    _check_same_shape(logits, targets, "of binary labels")
    found = functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    return found.reshape(len(targets), -1).mean(dim=1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error of a regression, a scalar; outputs and targets (n, ...) of one shape."""
    return _squared_errors(outputs, targets).mean()


def regression_measures(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean squared error e of each example, and exp(−e/2) as its score and its confidence: each (n,).

    exp(−e/2) is a normal density of variance 1 around the output, at the target, as a share of its peak: 1 for an exact
    answer, 0.6 for one that is 1 off. So targets are to be standardised.
    """
    errors = _squared_errors(outputs, targets)
    nearness = torch.exp(-errors / 2)
    return errors, nearness, nearness


def _squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error over the entries of each example (n,).

    Raises:
        AppError: outputs and targets differ in shape.
    """
    _check_same_shape(outputs, targets, "of a regression")
    return (outputs - targets).square().reshape(len(targets), -1).mean(dim=1)


def _check_same_shape(outputs: Tensor, targets: Tensor, kind: str) -> None:
    if outputs.shape != targets.shape:  # broadcasting would give a number, of every output with every target
        raise AppError(
            f"Outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} {kind} must have one shape. "
            "Let the model return what the targets are."
        )
