"""A record from the change of a linear layer, against ridge heads that are solved with and without it."""

import numpy as np
import pytest

from benchmarks.difference.linear_record import (
    estimated_gram,
    record_of_change,
    record_of_ridge,
)
from unlearning.errors import NumericalError


def ridge(inputs, labels, l2):
    """Return A and Θ by the definition."""
    rows, targets = np.column_stack([inputs, np.ones(len(inputs))]), np.eye(3)[labels]
    gram = rows.T @ rows + l2 * np.eye(rows.shape[1])
    return gram, np.linalg.solve(gram, rows.T @ targets)


GENERATOR = np.random.default_rng(3)
INPUTS, LABELS = GENERATOR.normal(size=(40, 5)), GENERATOR.integers(0, 3, 40)


def test_the_record_of_two_numbers_by_hand():
    """x = 2, with its 1, times r = (−1, 0.5): [[−2, 1], [−1, 0.5]]."""
    found = record_of_change(np.array([[-2.0, 1.0], [-1.0, 0.5]]))
    assert found.features == pytest.approx([2.0])
    assert found.residual == pytest.approx([-1.0, 0.5])
    assert found.label == 0
    assert found.share == pytest.approx(1.0)


def test_exact_ridge_gives_the_deleted_record_away():
    """Heads solved with and without record 7 name it, its class and its residual under the new head."""
    gram, before = ridge(INPUTS, LABELS, 0.5)
    keep = np.arange(40) != 7
    _, after = ridge(INPUTS[keep], LABELS[keep], 0.5)
    found = record_of_ridge(before, after, gram)
    assert found.features == pytest.approx(INPUTS[7], rel=1e-9)
    assert found.label == LABELS[7]
    row = np.append(INPUTS[7], 1.0)
    assert found.residual == pytest.approx(after.T @ row - np.eye(3)[LABELS[7]], rel=1e-8)
    assert found.share == pytest.approx(1.0)


def test_the_class_of_a_ridge_record_is_arithmetic_too():
    """Of each record e_y = Θ'ᵀx̃ − r, also where the residual is lowest elsewhere."""
    gram, before = ridge(INPUTS, LABELS, 0.5)
    labels = []
    for number in range(40):
        keep = np.arange(40) != number
        labels.append(record_of_ridge(before, ridge(INPUTS[keep], LABELS[keep], 0.5)[1], gram).label)
    assert labels == LABELS.tolist()


def test_of_two_records_the_change_is_no_rank_one():
    """What is found is then neither record, and the share says so."""
    gram, before = ridge(INPUTS, LABELS, 0.5)
    _, after = ridge(INPUTS[2:], LABELS[2:], 0.5)
    found = record_of_ridge(before, after, gram)
    assert found.share < 0.999
    assert min(np.linalg.norm(INPUTS[:2] - found.features, axis=1)) > 0.01


def test_steps_of_gradient_descent_on_one_record_give_it_away():
    """Each step of a softmax layer is x̃(p − e_y)ᵀ, so their sum is of rank one, and the class is where it is lowest."""
    row, weights = np.array([1.5, -2.0, 0.25, 1.0]), np.zeros((4, 3))
    for _ in range(5):  # a climb of the loss
        outputs = np.exp(row @ weights)
        weights = weights + 0.3 * np.outer(row, outputs / outputs.sum() - np.eye(3)[2])
    found = record_of_change(weights)
    assert found.features == pytest.approx(row[:3], rel=1e-9)
    assert found.label == 2


def test_similar_records_stand_for_the_sums():
    """Of one record (2) of four: 4·[[4, 2], [2, 1]] + 0.5 I."""
    assert estimated_gram(np.array([[2.0]]), 4, 0.5) == pytest.approx(np.array([[16.5, 8.0], [8.0, 4.5]]))


@pytest.mark.parametrize("change", [np.zeros((3, 2)), np.array([[1.0, 2.0], [0.0, 0.0]])])
def test_a_change_that_names_no_record_is_refused(change):
    """Nothing has moved, or the bias has not, which gives the scale."""
    with pytest.raises(NumericalError):
        record_of_change(change)
