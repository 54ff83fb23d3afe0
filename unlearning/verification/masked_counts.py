"""What a client measures on its three sets as whole numbers that can be summed under masks, and back.

A set is (examples, loss sum, score sum, losses in 512 bins, confidences in 512 bins). Losses l are binned by
l / (1 + l), confidences as they are. From the sum come observations whose every value is the middle of its bin, so
threshold attacks and AUC follow with an error of half a bin: 1/1024 of a confidence, about (1 + l)²/1024 of a loss.
Which loss belongs to which confidence, labels and posteriors are lost, and with them the attacks that need these.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import SecureAggregationError
from unlearning.verification.observations import Observations

BINS = 512
SETS = ("retained", "forgotten", "test")
_PER_SET, _STEPS, _MOST = 3 + 2 * BINS, 2**16, 1e3
LENGTH = len(SETS) * _PER_SET
"""How many numbers a measurement is."""


def to_counts(found: Mapping[str, Observations]) -> NDArray[np.int64]:
    """Return the numbers (LENGTH,) of what was observed, by the names of sets, with every example's values."""
    return np.concatenate([_of_set(found.get(name)) for name in SETS])


def from_counts(counts: NDArray[np.int64]) -> dict[str, Observations]:
    """Return what was observed by all clients together, of the sets that have an example.

    Raises:
        SecureAggregationError: the numbers are none that clients add up to.
    """
    parts = np.split(counts, len(SETS))
    return {name: _observations(part) for name, part in zip(SETS, parts, strict=True) if part[0]}


def _of_set(one: Observations | None) -> NDArray[np.int64]:
    found = np.zeros(_PER_SET, dtype=np.int64)
    if one is not None:
        losses = np.clip(np.nan_to_num(one.losses, nan=_MOST), 0, _MOST)
        limit = _MOST * one.num_examples
        sums = np.clip(np.nan_to_num([one.loss_sum, one.score_sum], nan=limit), -limit, limit)
        found[:3] = [one.num_examples, *np.rint(sums * _STEPS)]
        found[3:] = np.concatenate([_histogram(losses / (1 + losses)), _histogram(one.confidences)])
    return found


def _histogram(values: NDArray[np.float64]) -> NDArray[np.intp]:
    places = np.clip(np.nan_to_num(values) * BINS, 0, BINS - 1).astype(np.intp)
    return np.bincount(places, minlength=BINS)


def _observations(part: NDArray[np.int64]) -> Observations:
    bins = part[3:].reshape(2, BINS)
    if (bins < 0).any() or (bins.sum(axis=1) != part[0]).any():
        raise SecureAggregationError(
            "The sums of a measurement make no sense; a client sent wrong ones.", code="no-sum"
        )
    middles = (np.arange(BINS) + 0.5) / BINS
    return Observations(
        num_examples=int(part[0]),
        loss_sum=float(part[1]) / _STEPS,
        score_sum=float(part[2]) / _STEPS,
        losses=np.repeat(middles / (1 - middles), bins[0]),
        confidences=np.repeat(middles, bins[1]),
    )
