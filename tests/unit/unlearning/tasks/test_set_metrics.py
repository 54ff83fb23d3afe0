"""Metrics of whole sets: right on cases worked out by hand, and merged as weighted means."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from unlearning.errors import AppError
from unlearning.tasks.set_metrics import balanced_accuracy, compute_all, macro_f1, roc_auc
from unlearning.tasks.task import Task
from unlearning.verification.observations import Observations, merge

CLASSES = np.array([0, 0, 0, 1])
LOGITS = np.array([[2.0, 0], [1, 0], [0, 1], [0, 3]])
LABELS = np.array([[0.0, 1], [0, 1], [1, 0], [1, 0]])
LABEL_LOGITS = np.array([[-1.0, 1], [1, 2], [2, -1], [3, -2]])


@pytest.mark.parametrize(
    ("metric", "of_classes", "of_labels"),
    [
        (balanced_accuracy, (2 / 3 + 1) / 2, (0.75 + 1) / 2),
        (macro_f1, (0.8 + 2 / 3) / 2, (0.8 + 1) / 2),
        (roc_auc, 1.0, 1.0),
    ],
)
def test_the_metrics_of_classes_and_of_labels(metric, of_classes, of_labels):
    """One logit an example counts as two classes do."""
    assert metric(LOGITS, CLASSES) == pytest.approx(of_classes)
    assert metric(LABEL_LOGITS, LABELS) == pytest.approx(of_labels)
    margin = LOGITS[:, 1] - LOGITS[:, 0]
    if metric is not macro_f1:  # of one label it is that of the class 1
        assert metric(margin, CLASSES) == pytest.approx(of_classes)
        assert metric(margin[:, None], CLASSES[:, None].astype(float)) == pytest.approx(of_classes)


def test_the_auc_of_three_classes_is_averaged_over_those_that_occur():
    """And is not a number where there is one only."""
    logits = np.array([[3.0, 0, 1], [0, 1, 0], [2, 1, 0]])
    assert roc_auc(logits, np.array([0, 1, 1])) == pytest.approx(1.0)
    assert roc_auc(np.array([[0.0, 1, 0], [1, 0, 0]]), np.array([0, 1])) == pytest.approx(0.0)
    assert np.isnan(roc_auc(logits, np.array([1, 1, 1])))


@pytest.mark.parametrize("given", [macro_f1, [macro_f1], (macro_f1,)])
def test_a_task_takes_one_metric_or_several(given):
    """One of two by the same name would be lost (`tests/unit/unlearning/test_local_edges.py`)."""
    task = Task.classifier("rows", lambda: nn.Linear(2, 2), num_classes=2, set_metrics=given)
    assert task.metric_names == ("macro_f1",)
    assert hash(task) == hash(replace(task))


def observed(count: int, metrics: list[float] | None) -> Observations:
    arrays = {"sums": np.array([count, 0.0, 0.0]), "losses": np.zeros(0), "confidences": np.zeros(0)}
    return Observations.from_arrays(arrays if metrics is None else {**arrays, "metrics": np.array(metrics)})


def test_clients_metrics_are_merged_as_means_weighted_by_examples():
    """Of those that have one; what is too large to add up counts as none."""
    merged = merge([observed(1, [1.0, np.nan]), observed(3, [0.0, 0.5]), observed(9, [1e300, np.inf])])
    assert merged.named_metrics(("first", "second")) == {"first": 0.25, "second": 0.5}
    assert merged.named_metrics(("other",)) == {}
    assert merge([observed(1, [1.0]), observed(1, [1.0, 2.0]), observed(1, None)]).metrics is None


def test_a_metric_that_raises_is_named():
    """With the shapes that it was given."""
    with pytest.raises(AppError, match=r"test_set_metrics.*broken.*\(4, 2\)"):
        compute_all([broken], LOGITS, CLASSES)


def broken(outputs: np.ndarray, targets: np.ndarray) -> float:
    return outputs[99, 0]
