"""How well a score tells members from others: AUC, true positives at few false ones, with intervals.

A score is any number that an attack gives an example, higher meaning "rather a member". Everything here
depends on the order of scores only, so any increasing change of the scores leaves it as it is.

Source: Carlini et al., Membership Inference Attacks From First Principles (S&P 2022), for the true-positive
rate at a low false-positive rate; Efron and Tibshirani, An Introduction to the Bootstrap, for its interval. That
of the AUC is in `auc_interval`.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy  # its parts are imported at their first use
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.verification.auc_interval import Values, auc_interval, beaten
from unlearning.verification.figures import CONFIDENCE_LEVEL, Estimate

LOW_FPR = 0.01
REPLICATES = 400
_BLOCK = 2_000_000  # numbers of one array held at once: 16 MB


@dataclass(frozen=True, slots=True)
class Discrimination:
    """How well scores tell members from others.

    auc: the probability that a member's score is above another's, a tie counting half.
    tpr: the share of members above a threshold that at most 1 % of the others exceed; None where there are
        too few others to speak of 1 %, with the reason in `tpr_reason`.
    """

    auc: Estimate
    tpr: Estimate | None
    tpr_reason: str = ""


def auc(members: Values, others: Values, weights: Values | None = None) -> float:
    """Return P(member's score > other's) + ½ P(equal), from scores (n,) and (m,); others may be weighted, (m,).

    Raises:
        DataError: a side is empty, a score is not a number, or the weights do not fit.
    """
    return float(beaten(members, others, _checked_weights(members, others, weights)).mean())


def tpr_at_fpr(members: Values, others: Values, fpr: float = LOW_FPR) -> float:
    """Return the largest share of members that a threshold catches while it catches at most `fpr` of the others.

    Raises:
        DataError: as for `auc`.
    """
    return _Curve.of(members, others, _checked_weights(members, others, None)).own_tpr(fpr)


def discriminate(
    members: Values,
    others: Values,
    *,
    seed: int,
    weights: Values | None = None,
    replicates: int = REPLICATES,
) -> Discrimination:
    """Return AUC (with `auc_interval`) and true-positive rate at 1 % false positives (with the bootstrap's interval).

    For the bootstrap members and others are resampled each on their own, with replacement; the interval is that
    of the 2.5th to the 97.5th percentile, which for few examples is too short. Where every replicate gives the same
    figure (perfect separation, no member found) the bootstrap is blind, and the interval reaches 3/n further, n the
    smaller side. Source of that: the rule of three (Hanley and Lippman-Hand, JAMA 1983).

    weights: of the others (m,), to give them another mix of classes.

    Raises:
        DataError: as for `auc`.
    """
    given = _checked_weights(members, others, weights)
    interval = auc_interval(members, others, given, level=CONFIDENCE_LEVEL)
    area = Estimate(auc(members, others, given), *interval)
    if effective_size(given) < 1 / LOW_FPR:
        return Discrimination(
            area, None, f"not measured: fewer than {1 / LOW_FPR:.0f} examples that were never trained on"
        )
    return Discrimination(area, _tpr(_Curve.of(members, others, given), seed, replicates))


def _tpr(curve: "_Curve", seed: int, replicates: int) -> Estimate:
    """Return the true-positive rate at 1 % false positives, with its bootstrap interval."""
    count, size = len(curve.member_order), len(curve.other_order)
    drawn_members = _times_drawn(count, replicates, seed, 0)[:, curve.member_order]
    part = curve.other_weights[0] > 0  # an example of weight zero takes no part
    drawn_others = np.zeros((replicates, size), dtype=np.uint16)
    drawn_others[:, part] = _times_drawn(int(part.sum()), replicates, seed, 1)[
        :, _ranks(curve.other_order[part])
    ]
    rates = []
    block = max(1, _BLOCK // max(count, size))
    for start in range(0, replicates, block):
        rows = slice(start, start + block)
        rates.append(curve.tpr(drawn_members[rows], drawn_others[rows] * curve.other_weights, LOW_FPR))
    return _interval(curve.own_tpr(LOW_FPR), np.concatenate(rates), min(count, size))


def share(called: NDArray[np.bool_]) -> Estimate:
    """Return the share of True in (n,), with Wilson's 95 % interval.

    The bootstrap of a share is a binomial count and gives [0, 0] for none of n; Wilson's interval does not.

    Raises:
        DataError: there is nothing to count.
    """
    if called.ndim != 1 or len(called) == 0:
        raise DataError(f"A share needs one example or more in one array, got shape {called.shape}.")
    hits = int(np.sum(called))
    interval = scipy.stats.binomtest(hits, len(called)).proportion_ci(CONFIDENCE_LEVEL, method="wilson")
    value = hits / len(called)
    return Estimate(value, min(float(interval.low), value), max(float(interval.high), value))


def effective_size(weights: Values) -> float:
    """Compute (Σw)² / Σw²: how many equally weighted examples say as much (Kish); 0 where all weights are 0."""
    squares = float(np.sum(weights**2))
    return float(np.sum(weights)) ** 2 / squares if squares else 0.0


@dataclass(frozen=True, slots=True)
class _Curve:
    """Sorted scores, and where each stands among the other side's: all that any replicate needs.

    other_weights (1, m): in the order of the sorted scores, as are the positions `member_order` (n,) and
        `other_order` (m,) at which the examples were given.
    others_end, members_end (k,): for each distinct other's score, how many of each side are at most equal.
    """

    other_weights: Values
    member_order: NDArray[np.intp]
    other_order: NDArray[np.intp]
    others_end: NDArray[np.intp]
    members_end: NDArray[np.intp]

    @classmethod
    def of(cls, members: Values, others: Values, weights: Values) -> "_Curve":
        member_order, order = np.argsort(members, kind="stable"), np.argsort(others, kind="stable")
        sorted_members, sorted_others = members[member_order], others[order]
        distinct = np.unique(sorted_others)
        return cls(
            other_weights=weights[order][np.newaxis],
            member_order=member_order,
            other_order=order,
            others_end=np.searchsorted(sorted_others, distinct, side="right"),
            members_end=np.searchsorted(sorted_members, distinct, side="right"),
        )

    def own_tpr(self, fpr: float) -> float:
        """Return the true-positive rate of the scores as they were given."""
        return float(self.tpr(np.ones((1, len(self.member_order))), self.other_weights, fpr)[0])

    def tpr(self, times_drawn: NDArray[Any], other_weights: Values, fpr: float) -> Values:
        """Return one value for each row: of how often members are drawn, (rows, n), and others' weights, (rows, m)."""
        others, members = _cumulate(other_weights), _cumulate(times_drawn)
        false_rates = 1 - others[:, self.others_end] / others[:, -1:]
        true_rates = 1 - members[:, self.members_end] / members[:, -1:]
        # thresholds rise along a row and both rates fall, so the first that is allowed catches most;
        # the tolerance is for 1 - 99/100, which is a little more than 1/100 in floating point
        allowed = np.argmax(false_rates <= fpr + 1e-9, axis=1)
        rates: Values = true_rates[np.arange(len(true_rates)), allowed]
        return rates


def _cumulate(weights: NDArray[Any]) -> Values:
    return np.concatenate([np.zeros((len(weights), 1)), np.cumsum(weights, axis=1)], axis=1)


@lru_cache(maxsize=8)
def _times_drawn(size: int, replicates: int, seed: int, side: int) -> NDArray[np.uint16]:
    """Return how often each of `size` examples is drawn when as many are drawn with replacement, (replicates, size).

    Kept for the next attack on the same examples: drawing costs more than all the rest.
    """
    drawn = np.random.default_rng([seed, side]).integers(0, size, size=(replicates, size))
    drawn += size * np.arange(replicates)[:, np.newaxis]
    counts = np.bincount(drawn.ravel(), minlength=replicates * size).reshape(replicates, size)
    result = counts.astype(np.uint16)
    result.flags.writeable = False
    return result


def _ranks(values: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the place of each value among the values."""
    return np.argsort(np.argsort(values))


def _interval(value: float, replicates: Values, smaller: int) -> Estimate:
    tail = (1 - CONFIDENCE_LEVEL) / 2
    low, high = (float(bound) for bound in np.quantile(replicates, [tail, 1 - tail]))
    if high - low < 1e-12:
        low, high = max(0.0, value - 3 / smaller), min(1.0, value + 3 / smaller)
    return Estimate(value, min(low, value), max(high, value))


def _checked_weights(members: Values, others: Values, given: Values | None) -> Values:
    """Return the others' weights, all 1 where none are given.

    Raises:
        DataError: as for `auc`.
    """
    weights = np.ones(len(others)) if given is None else np.asarray(given, dtype=np.float64)
    for what, values in (("members'", members), ("others'", others)):
        if values.ndim != 1 or len(values) == 0:
            raise DataError(f"One array of {what} scores or more is needed, got shape {values.shape}.")
        if np.isnan(values).any():
            raise DataError(f"{int(np.isnan(values).sum()):,} of the {what} scores are not numbers.")
    fits = weights.shape == others.shape and np.isfinite(weights).all()
    if not fits or (weights < 0).any() or weights.sum() == 0:
        raise DataError(
            f"{len(others)} others need as many weights that are not negative and not all zero, got shape "
            f"{weights.shape}."
        )
    return weights
