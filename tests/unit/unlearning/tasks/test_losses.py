"""Losses and measures against hand computation."""

import math

import pytest
import torch

from unlearning.tasks import losses


def test_classification_measures_by_hand() -> None:
    """Logits ln 3 and 0 are probabilities 3/4 and 1/4."""
    logits = torch.tensor([[math.log(3), 0.0], [math.log(3), 0.0]], dtype=torch.float64)
    loss, score, confidence = losses.classification_measures(logits, torch.tensor([0, 1]))
    torch.testing.assert_close(loss, -torch.tensor([0.75, 0.25], dtype=torch.float64).log())
    assert score.tolist() == [1, 0]
    assert confidence.tolist() == pytest.approx([0.75, 0.25])


def test_binary_measures_by_hand() -> None:
    """Two labels an example, with probabilities 3/4 and 1/4 of being there; half a label is on the wrong side of ½."""
    a = math.log(3)
    logits = torch.tensor([[a, -a], [a, a], [-a, -a]], dtype=torch.float64)
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.5]], dtype=torch.float64)
    loss, score, confidence = losses.binary_measures(logits, targets)
    right, wrong = -math.log(0.75), -math.log(0.25)
    expected = [right, (right + wrong) / 2, (wrong + (right + wrong) / 2) / 2]
    assert loss.tolist() == pytest.approx(expected)
    assert score.tolist() == [1.0, 0.5, 0.5]
    assert confidence.tolist() == pytest.approx([math.exp(-one) for one in expected])
    assert float(losses.binary_cross_entropy(logits, targets)) == pytest.approx(sum(expected) / 3)


def test_regression_measures_by_hand() -> None:
    """The mean squared error e of an example's entries, and exp(−e/2)."""
    outputs = torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    targets = torch.tensor([[1.0, 2.0], [1.0, 3.0]], dtype=torch.float64)
    errors, score, confidence = losses.regression_measures(outputs, targets)
    assert errors.tolist() == [0.0, 5.0]
    assert score.tolist() == confidence.tolist() == pytest.approx([1.0, math.exp(-2.5)])
    assert float(losses.squared_error(outputs, targets)) == 2.5


def test_segmentation_measures_by_hand() -> None:
    """Four pixels, foreground probability 3/4 in the first row and 1/4 in the second; one true pixel."""
    a = math.log(3)
    logits = torch.tensor([[[[0.0, 0.0], [a, a]], [[a, a], [0.0, 0.0]]]], dtype=torch.float64)
    targets = torch.tensor([[[1, 0], [0, 0]]])
    loss, dice, confidence = losses.segmentation_measures(logits, targets)
    cross_entropy = -(3 * math.log(0.75) + math.log(0.25)) / 4
    soft_dice = (2 * 0.75 + 1) / (2 * 0.75 + 2 * 0.25 + 1 + 1)
    assert loss.tolist() == pytest.approx([cross_entropy + 1 - soft_dice])
    assert dice.tolist() == pytest.approx([2 * 1 / (2 + 1)])
    assert confidence.tolist() == pytest.approx([(3 * 0.75 + 0.25) / 4])


def test_an_empty_mask_predicted_empty_is_perfect() -> None:
    """Dice is 1, not 0/0, where there is nothing to find and nothing was found."""
    logits = torch.zeros(1, 2, 2, 2)
    logits[:, 0] = 5
    _, dice, _ = losses.segmentation_measures(logits, torch.zeros(1, 2, 2, dtype=torch.int64))
    assert dice.tolist() == [1]


def test_the_batch_loss_is_the_mean_of_the_examples_losses() -> None:
    """For both kinds, so that example-weighted means over batches are the mean over the data."""
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 2, 1])
    pixels = torch.randn(5, 3, 4, 4, generator=generator, dtype=torch.float64)
    masks = torch.randint(3, (5, 4, 4), generator=generator)
    classification = losses.classification_measures(flat, labels)[0].mean()
    segmentation = losses.segmentation_measures(pixels, masks)[0].mean()
    torch.testing.assert_close(losses.cross_entropy(flat, labels), classification)
    torch.testing.assert_close(losses.cross_entropy_and_dice(pixels, masks), segmentation)
