"""What one client tells the server about one set of its examples.

The sums run over every example; single values travel for a bounded random sample only, without ids
and in random order, because the membership attacks need values and not means.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.tasks.task import PerExample


@dataclass(frozen=True, slots=True)
class Observations:
    """Sums over `num_examples` examples, and the loss and confidence of k ≤ `num_examples` of them.

    losses, confidences: shape (k,), float64; entry j of both belongs to the same example.

    Raises:
        DataError: the sample is not a sample of that many examples.
    """

    num_examples: int
    loss_sum: float
    score_sum: float
    losses: NDArray[np.float64]
    confidences: NDArray[np.float64]

    def __post_init__(self) -> None:
        fits = self.losses.ndim == 1 and self.losses.shape == self.confidences.shape
        if not fits or not 0 <= len(self.losses) <= self.num_examples:
            raise DataError(
                f"Observations of {self.num_examples} examples need as many sampled losses as "
                f"confidences and no more than examples, got shapes {self.losses.shape} and "
                f"{self.confidences.shape}."
            )

    @property
    def mean_loss(self) -> float | None:
        """The mean loss over every example; None where there is none or the mean is not a number."""
        return self._mean(self.loss_sum)

    @property
    def mean_score(self) -> float | None:
        """The mean score (accuracy, Dice) over every example; None as for `mean_loss`."""
        return self._mean(self.score_sum)

    def to_arrays(self) -> dict[str, NDArray[np.float64]]:
        """The observations as float64 arrays, for transport; `from_arrays` is the inverse."""
        return {
            "sums": np.array([self.num_examples, self.loss_sum, self.score_sum], dtype=np.float64),
            "losses": self.losses,
            "confidences": self.confidences,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Observations":
        """The inverse of `to_arrays`.

        Raises:
            DataError: an array is missing or the sums are not a count and two numbers.
        """
        missing = sorted({"sums", "losses", "confidences"} - set(arrays))
        if missing:
            raise DataError(f"Observations lack the array(s) {', '.join(missing)}.")
        sums = np.asarray(arrays["sums"], dtype=np.float64)
        if sums.shape != (3,) or not np.isfinite(sums[0]) or sums[0] < 0 or sums[0] != np.floor(sums[0]):
            raise DataError(
                f"The sums of observations are a count of examples and two numbers, got {sums.tolist()}."
            )
        return cls(
            num_examples=int(sums[0]),
            loss_sum=float(sums[1]),
            score_sum=float(sums[2]),
            losses=np.asarray(arrays["losses"], dtype=np.float64),
            confidences=np.asarray(arrays["confidences"], dtype=np.float64),
        )

    def _mean(self, total: float) -> float | None:
        if self.num_examples == 0 or not np.isfinite(total):
            return None
        return total / self.num_examples


def observe(per_example: PerExample, *, max_samples: int, generator: np.random.Generator) -> Observations:
    """The observations of one set: sums over all n examples, values of min(n, max_samples).

    The sample is drawn without replacement. Its order is random too, so that it says nothing about
    which example is which.
    """
    chosen = generator.permutation(len(per_example))[:max_samples]
    return Observations(
        num_examples=len(per_example),
        loss_sum=float(per_example.loss.sum()),
        score_sum=float(per_example.score.sum()),
        losses=per_example.loss[chosen],
        confidences=per_example.confidence[chosen],
    )


def merge(parts: Iterable[Observations]) -> Observations:
    """Several clients' observations as one, the same bits whatever order they come in.

    The pooled sample is sorted by loss. Where clients sent a bounded sample, one that holds more than
    its bound counts less in the pooled sample than in the sums.
    """
    every = list(parts)
    losses = np.concatenate([np.zeros(0), *(part.losses for part in every)])
    confidences = np.concatenate([np.zeros(0), *(part.confidences for part in every)])
    order = np.lexsort((confidences, losses))
    return Observations(
        num_examples=sum(part.num_examples for part in every),
        loss_sum=sum(sorted(part.loss_sum for part in every), start=0.0),
        score_sum=sum(sorted(part.score_sum for part in every), start=0.0),
        losses=losses[order],
        confidences=confidences[order],
    )
