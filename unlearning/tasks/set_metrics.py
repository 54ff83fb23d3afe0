"""Metrics of a whole set of outputs and targets, which are no mean over its examples: for `Task.set_metrics`.

Outputs (n, classes) with targets (n,) of a classification; or one logit an example, (n,) or (n, 1), or one for each of
several labels, (n, labels), with targets of that shape, 0 or 1.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import AppError, DataError, FlowerUnlearningError
from unlearning.tasks.own_code import name_of

SetMetric: TypeAlias = Callable[[NDArray[Any], NDArray[Any]], float]
"""Computes one number of outputs (n, ...) and targets (n, ...) of all examples of a set; its name is the function's."""

MOST_METRICS, LARGEST_METRIC = 100, 1e100
"""What a client may send of a set; larger ones could not be added up."""


def balanced_accuracy(outputs: NDArray[Any], targets: NDArray[Any]) -> float:
    """Compute the mean over true classes of the share that is recognised; of several labels, the mean over labels."""
    from sklearn.metrics import balanced_accuracy_score

    pairs = _columns(_predicted(outputs, targets), targets)
    return float(np.mean([balanced_accuracy_score(true, said) for said, true in pairs]))


def macro_f1(outputs: NDArray[Any], targets: NDArray[Any]) -> float:
    """Compute F1, averaged over classes; of labels, F1 of each label, averaged."""
    from sklearn.metrics import f1_score

    said = _predicted(outputs, targets)
    if outputs.shape == targets.shape:
        scores = [f1_score(true, one, zero_division=0) for one, true in _columns(said, targets)]
        return float(np.mean(scores))
    return float(f1_score(targets, said, average="macro", zero_division=0))


def roc_auc(outputs: NDArray[Any], targets: NDArray[Any]) -> float:
    """Compute the area under the ROC curve; of several classes one against the rest, averaged over those that occur.

    Not a number where a set has one class only.
    """
    from sklearn.metrics import roc_auc_score

    if outputs.shape != targets.shape:
        margins = np.stack(
            [outputs[:, c] - np.delete(outputs, c, axis=1).max(axis=1) for c in range(outputs.shape[1])]
        )
        occurring = np.unique(targets) if outputs.shape[1] > 2 else np.array([1])
        pairs = [(margins[int(c)], targets == c) for c in occurring]
    else:
        pairs = _columns(outputs, targets)
    found = [roc_auc_score(true, scores) for scores, true in pairs if len(np.unique(true)) == 2]
    return float(np.mean(found)) if found else float("nan")


def compute_all(
    metrics: Sequence[SetMetric], outputs: NDArray[Any], targets: NDArray[Any]
) -> NDArray[np.float64]:
    """Compute every metric (k,) of a set; not a number where one is not defined.

    Raises:
        AppError: a metric raised, or gave no number.
    """
    found = []
    for metric in metrics:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a class that a small set lacks
                found.append(float(metric(outputs, targets)))
        except FlowerUnlearningError:
            raise
        except Exception as exc:
            said = " ".join(str(exc).split())[:300].rstrip(".")
            raise AppError(
                f"The metric {name_of(metric)} cannot be computed of outputs {outputs.shape} and targets "
                f"{targets.shape}: {type(exc).__name__}: {said}."
            ) from exc
    return np.array(found, dtype=np.float64)


def mean_metrics(every: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return the mean of each metric over those that have it, weighted by examples; nothing where lengths differ."""
    found = [(arrays["sums"][0], arrays["metrics"]) for arrays in every if "metrics" in arrays]
    if not found or len({len(values) for _, values in found}) > 1:
        return {}
    counts, values = (
        np.array([count for count, _ in found])[:, np.newaxis],
        np.stack([one for _, one in found]),
    )
    weights = np.where(np.isnan(values), 0.0, counts)
    total = weights.sum(axis=0)
    means = (weights * np.nan_to_num(values)).sum(axis=0) / np.where(total > 0, total, 1.0)
    return {"metrics": np.where(total > 0, means, np.nan)}


def metrics_in(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float64] | None:
    """Return the metrics, one by one; not a number for what is none, or too large to be added up.

    Raises:
        DataError: they are no row of at most `MOST_METRICS`.
    """
    if "metrics" not in arrays:
        return None
    found = np.asarray(arrays["metrics"], dtype=np.float64)
    if found.ndim != 1 or len(found) > MOST_METRICS:
        raise DataError(f"Metrics of a set are a row of at most {MOST_METRICS}, got shape {found.shape}.")
    return np.where(np.abs(found) <= LARGEST_METRIC, found, np.nan)


def _predicted(outputs: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
    return outputs > 0 if outputs.shape == targets.shape else outputs.argmax(axis=1)


def _columns(values: NDArray[Any], targets: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return each label's values and truth; of classes the one pair."""
    if values.ndim < 2:
        return [(values, targets > 0.5 if values.dtype == np.bool_ else targets)]
    return [(values[:, label], targets[:, label] > 0.5) for label in range(values.shape[1])]
