"""What one client tells the server about one set of its examples.

The sums run over every example; single values travel for a bounded random sample only, without ids
and in random order, because the membership attacks need values and not means. Everything that
leaves a client is listed in docs/explanation-membership-attacks.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import scipy  # its parts are imported at their first use
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.evaluation import evaluate, evaluate_and_predict
from unlearning.parameters import Vector
from unlearning.tasks.set_metrics import compute_all, mean_metrics, metrics_in
from unlearning.tasks.task import Examples, PerExample, Task
from unlearning.verification.thresholds import entropy, modified_entropy

MOST_CLASSES = 100
"""Posteriors of more classes than this are not sent: they would outweigh the model."""


@dataclass(frozen=True, slots=True)
class Details:
    """What the threshold attacks need of each of k sampled examples of a classification, each array (k,).

    correct: 1 where the arg-max is right, else 0. entropies, modified_entropies: in nats.
    """

    labels: NDArray[np.int64]
    correct: NDArray[np.float64]
    entropies: NDArray[np.float64]
    modified_entropies: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Posteriors (k, classes) that can be compared with those of another model, example by example.

    handles (k,): a random number an example, the same at every measurement of a run; not its id.
    """

    handles: NDArray[np.float64]
    posteriors: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Observations:
    """Sums over `num_examples` examples, and the loss and confidence of k ≤ `num_examples` of them.

    losses, confidences: shape (k,), float64; entry j of both belongs to the same example.
    margins: φ (k,) of the same examples (`margins`); None where the task is no classification.
    details: of the same examples in the same order; None where the task is no classification.
    outputs: likewise; None where they were not requested.
    metrics: of the whole set (k,), the task's `set_metrics` in their order; not a number where one is not defined. Of
        several clients' observations the means, weighted by numbers of examples. None where the task has none.

    Raises:
        DataError: the sample is not a sample of that many examples.
    """

    num_examples: int
    loss_sum: float
    score_sum: float
    losses: NDArray[np.float64]
    confidences: NDArray[np.float64]
    details: Details | None = None
    outputs: Outputs | None = None
    margins: NDArray[np.float64] | None = None
    metrics: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        fits = self.losses.ndim == 1 and self.losses.shape == self.confidences.shape
        if not fits or len(self.losses) > self.num_examples:
            raise DataError(
                f"Losses and confidences are one value each of at most {self.num_examples} examples, got arrays of "
                f"shapes {self.losses.shape} and {self.confidences.shape}."
            )
        if self.margins is not None and self.margins.shape != self.losses.shape:
            raise DataError(
                f"{len(self.losses)} sampled losses came with margins of shape {self.margins.shape}."
            )
        for group in (self.details, self.outputs):
            for item in fields(group) if group is not None else ():
                shape = getattr(group, item.name).shape
                dimensions = 2 if item.name == "posteriors" else 1
                if shape[:1] != self.losses.shape or len(shape) != dimensions:
                    raise DataError(
                        f"{len(self.losses)} sampled losses came with {item.name} of shape {shape}."
                    )

    @property
    def mean_loss(self) -> float | None:
        """The mean loss over every example; None where there is none or the mean is not a number."""
        return self._mean(self.loss_sum)

    @property
    def mean_score(self) -> float | None:
        """The mean score (accuracy, Dice) over every example; None as for `mean_loss`."""
        return self._mean(self.score_sum)

    def named_metrics(self, names: Sequence[str]) -> dict[str, float]:
        """Return the metrics that are defined, by their names; none where there are not as many."""
        if self.metrics is None or len(self.metrics) != len(names):
            return {}
        pairs = zip(names, self.metrics.tolist(), strict=True)
        return {name: value for name, value in pairs if np.isfinite(value)}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the observations as named arrays, for transport; `from_arrays` is the inverse."""
        arrays: dict[str, NDArray[Any]] = {
            "sums": np.array([self.num_examples, self.loss_sum, self.score_sum], dtype=np.float64),
            "losses": self.losses,
            "confidences": self.confidences,
        }
        for group in (self.details, self.outputs):
            if group is not None:
                arrays |= {item.name: getattr(group, item.name) for item in fields(group)}
        more = {"margins": self.margins, "metrics": self.metrics}
        return {**arrays, **{name: one for name, one in more.items() if one is not None}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Observations":
        """Return the inverse of `to_arrays`. Details and outputs may be missing, each as a whole, and the margins.

        Raises:
            DataError: an array is missing, the sums are not a count and two numbers, or a margin is not finite.
        """
        missing = sorted({"sums", "losses", "confidences"} - set(arrays))
        if missing:
            raise DataError(f"Observations lack the array(s) {', '.join(missing)}.")
        sums = np.asarray(arrays["sums"], dtype=np.float64)
        if sums.shape != (3,) or not np.isfinite(sums[0]) or sums[0] < 0 or sums[0] != np.floor(sums[0]):
            raise DataError(
                f"The sums of observations are a count of examples and two numbers, got {sums.tolist()}."
            )
        if any(not np.isfinite(arrays[name]).all() for name in ("labels", "correct") if name in arrays):
            raise DataError("Labels of observations are numbers.")
        sent = arrays.get("margins")
        if sent is not None and not np.isfinite(sent).all():
            raise DataError("A margin of an observed example is not a finite number.")
        return cls(
            num_examples=int(sums[0]),
            loss_sum=float(sums[1]),
            score_sum=float(sums[2]),
            losses=np.asarray(arrays["losses"], dtype=np.float64),
            confidences=np.asarray(arrays["confidences"], dtype=np.float64),
            details=_group(Details, arrays),
            outputs=_group(Outputs, arrays),
            margins=None if sent is None else np.asarray(sent, dtype=np.float64),
            metrics=metrics_in(arrays),
        )

    def _mean(self, total: float) -> float | None:
        if self.num_examples == 0 or not np.isfinite(total):
            return None
        return total / self.num_examples


def draw_sample(
    count: int, max_samples: int, generator: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return which min(count, max_samples) of `count` examples are sampled, and the handle of each.

    Without replacement and in random order, so that the order says nothing about which example is which.
    """
    chosen = generator.permutation(count)[:max_samples]
    return chosen, generator.random(len(chosen))


def observe(per_example: PerExample, chosen: NDArray[np.intp]) -> Observations:
    """Return the observations of one set: sums over all n examples, values of those `chosen` by `draw_sample`."""
    return Observations(
        num_examples=len(per_example),
        loss_sum=float(per_example.loss.sum()),
        score_sum=float(per_example.score.sum()),
        losses=per_example.loss[chosen],
        confidences=per_example.confidence[chosen],
    )


def observe_model(
    task: Task,
    parameters: Vector,
    examples: Examples,
    *,
    max_samples: int,
    generator: np.random.Generator,
    with_outputs: bool = False,
) -> Observations:
    """Return the observations of the model `parameters` (d,) on examples, with the details that classifications allow.

    with_outputs: send the sampled examples' posteriors too. The generator alone decides which examples are
        sampled and what their handles are, whatever the model.
    """
    needs_all = bool(task.set_metrics) and len(examples) > 0
    is_classification = task.num_classes > 0 and examples.has_labels and len(examples) > 0
    chosen, handles = draw_sample(len(examples), max_samples, generator)
    logits: NDArray[Any] = np.zeros(0)
    if is_classification or needs_all:
        wanted = np.arange(len(examples)) if needs_all else chosen
        per_example, logits = evaluate_and_predict(task, parameters, examples, wanted)
    else:
        per_example = evaluate(task, parameters, examples)
    plain = observe(per_example, chosen)
    if needs_all:
        metrics = compute_all(task.set_metrics, logits, examples.targets.numpy())
        plain, logits = replace(plain, metrics=metrics), logits[chosen]
    if not is_classification or len(chosen) == 0:
        return plain
    sampled = examples.select(chosen)
    if logits.ndim != 2 or logits.shape[1] != max(task.num_classes, 2) or not np.isfinite(logits).all():
        return plain
    labels, posteriors = sampled.targets.numpy().astype(np.int64), scipy.special.softmax(logits, axis=1)
    return replace(
        plain,
        details=Details(
            labels=labels,
            correct=(logits.argmax(axis=1) == labels).astype(np.float64),
            entropies=entropy(posteriors),
            modified_entropies=modified_entropy(posteriors, labels),
        ),
        outputs=Outputs(handles, posteriors.astype(np.float32))
        if with_outputs and logits.shape[1] <= MOST_CLASSES
        else None,
        margins=margins(logits, labels),
    )


def margins(outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute φ = log(p_y / (1 − p_y)) (n,) from outputs (n, classes) of two classes or more and true classes (n,).

    Of outputs, because of a model that knows its examples by heart p is 1 but for what a number can hold.
    """
    own = np.take_along_axis(outputs.astype(np.float64), labels[:, np.newaxis], axis=1)
    others = outputs.astype(np.float64)
    np.put_along_axis(others, labels[:, np.newaxis], -np.inf, axis=1)
    result: NDArray[np.float64] = own[:, 0] - scipy.special.logsumexp(others, axis=1)
    return result


def merge(parts: Iterable[Observations]) -> Observations:
    """Return several clients' observations as one, the same bits whatever order they come in.

    The pooled sample is sorted, by loss first. Details, outputs and margins are pooled where every part has them.
    Where clients sent a bounded sample, one that holds more than its bound counts less in the pooled
    sample than in the sums.
    """
    every = [part.to_arrays() for part in parts]
    if not every:
        return Observations(0, 0.0, 0.0, np.zeros(0), np.zeros(0))
    columns = {}
    for name in every[0].keys() - {"sums", "metrics"}:
        found = [arrays[name] for arrays in every if name in arrays]
        is_everywhere = len(found) == len(every)
        if is_everywhere and len({array.shape[1:] for array in found}) == 1:  # posteriors of as many classes
            columns[name] = np.concatenate(found)
    order = np.lexsort([columns[name] for name in reversed(_SORTED_BY) if name in columns])
    # each in an order of its own, for a sum of floating-point numbers depends on it
    sums = [sum(sorted(values)) for values in np.stack([arrays["sums"] for arrays in every]).T.tolist()]
    sampled = {name: column[order] for name, column in columns.items()}
    return Observations.from_arrays({"sums": np.array(sums), **sampled, **mean_metrics(every)})


_SORTED_BY = (
    *("losses", "confidences", "margins"),
    *("labels", "correct", "entropies", "modified_entropies", "handles"),
)
"""The arrays by which a pooled sample is sorted, of those that it has."""

_Group = TypeVar("_Group", Details, Outputs)


def _group(kind: type[_Group], arrays: Mapping[str, NDArray[Any]]) -> _Group | None:
    """Return the arrays of `kind` by their names, in its own types; None where one of them is missing."""
    names = [item.name for item in fields(kind)]
    if not set(names) <= set(arrays):
        return None
    types = {"labels": np.int64, "posteriors": np.float32}
    return kind(**{name: np.asarray(arrays[name], dtype=types.get(name, np.float64)) for name in names})
