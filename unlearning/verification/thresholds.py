"""Song and Mittal's four threshold attacks: correctness, confidence, entropy and modified entropy.

Each gives an example one number; one that reaches a threshold is called a member. The thresholds are
learnt for every class on its own from examples whose truth is known, because a model is surer of some
classes than of others, trained on or not.

Legend: p posterior of an example (classes,), y its true class.

    correctness         1 if the arg-max of p is y, else 0; no threshold to learn
    confidence          p_y
    entropy             H(p)     = −Σ_i p_i log p_i                          members have less
    modified entropy    M(p, y)  = −(1 − p_y) log p_y − Σ_{i≠y} p_i log(1 − p_i)   members have less

Source: Song and Mittal, Systematic Evaluation of Privacy Risks of Machine Learning Models (USENIX
Security 2021), §3.2; the floor of 1e-30 under logarithms is their code's.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError

Values = NDArray[np.float64]
Labels = NDArray[np.int64]

CORRECTNESS = "correctness"
CONFIDENCE_THRESHOLD = "confidence-threshold"
ENTROPY = "entropy"
MODIFIED_ENTROPY = "modified-entropy"

_FLOOR = 1e-30


@dataclass(frozen=True, slots=True)
class Scored:
    """An attack's scores (n,), higher meaning "rather a member", and the true classes (n,).

    Raises:
        DataError: the two do not fit together, or a score is not a number.
    """

    scores: Values
    labels: Labels

    def __post_init__(self) -> None:
        if self.scores.ndim != 1 or self.scores.shape != self.labels.shape:
            raise DataError(
                f"Each score needs a class, got shapes {self.scores.shape} and {self.labels.shape}."
            )
        if np.isnan(self.scores).any():
            raise DataError(f"{int(np.isnan(self.scores).sum()):,} scores are not numbers.")

    def __len__(self) -> int:
        return len(self.scores)

    def at(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> "Scored":
        """Return those at `which`, positions or a mask."""
        return Scored(self.scores[which], self.labels[which])


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What an attack says that calls examples members.

    called: which forgotten examples (n,) it calls members.
    balanced_accuracy: how well the same attack, where it learns from one half of the known members and others,
        tells the other half apart; 0.5 is guessing. An attack without power says nothing.
    """

    called: NDArray[np.bool_]
    balanced_accuracy: float


def entropy(posteriors: Values) -> Values:
    """Return H(p) in nats, (n,), of posteriors (n, classes).

    Raises:
        DataError: these are no posteriors.
    """
    _check_posteriors(posteriors)
    result: Values = -np.sum(posteriors * _log(posteriors), axis=1)
    return result


def modified_entropy(posteriors: Values, labels: Labels) -> Values:
    """Return M(p, y), (n,), of posteriors (n, classes) and true classes (n,); 0 only if the true class has all.

    Raises:
        DataError: these are no posteriors, or a label is no class of theirs.
    """
    _check_posteriors(posteriors)
    count, classes = posteriors.shape
    if labels.shape != (count,) or np.any((labels < 0) | (labels >= classes)):
        raise DataError(f"{count} posteriors need as many labels from 0 to {classes - 1}.")
    rows = np.arange(count)
    others = posteriors.copy()
    others[rows, labels] = 0.0
    rest = others.sum(axis=1)  # 1 − p_y, which the subtraction would round to 0 where the model is sure
    own = np.where(rest < 0.5, _log_of_rest(rest), _log(posteriors[rows, labels]))
    result: Values = -rest * own - (others * _log_of_rest(others)).sum(axis=1)
    return result


def best_threshold(members: Values, others: Values) -> float:
    """Return the value t for which "score ≥ t" has the best balanced accuracy; of several the highest.

    The authors take the first in the order of the data; the highest calls the fewest members and does not
    depend on that order.

    Raises:
        DataError: a side is empty.
    """
    if len(members) == 0 or len(others) == 0:
        raise DataError(f"A threshold needs both sides, got {len(members)} members, {len(others)} others.")
    candidates = np.unique(np.concatenate([members, others]))[::-1]
    found = len(members) - np.searchsorted(np.sort(members), candidates, side="left")
    alarms = len(others) - np.searchsorted(np.sort(others), candidates, side="left")
    # whole numbers, because equally good thresholds would differ in the last digit of a fraction
    return float(candidates[np.argmax(found * len(others) - alarms * len(members))])


def class_thresholds(members: Scored, others: Scored, classes: Labels) -> Values:
    """Return a threshold for each of `classes` (k,): its own, or that of all classes where a side lacks the class.

    Raises:
        DataError: a side is empty.
    """
    overall = best_threshold(members.scores, others.scores)
    thresholds = np.full(len(classes), overall)
    for position, label in enumerate(classes):
        mine, theirs = members.scores[members.labels == label], others.scores[others.labels == label]
        if len(mine) and len(theirs):
            thresholds[position] = best_threshold(mine, theirs)
    return thresholds


def threshold_attack(members: Scored, others: Scored, forgotten: Scored, *, seed: int) -> AttackResult:
    """Learn class-wise thresholds from members and others, then ask about the forgotten examples.

    seed: decides which half of the known examples measures the attack's power.

    Raises:
        DataError: fewer than two members or others, or nothing forgotten.
    """
    if len(members) < 2 or len(others) < 2 or len(forgotten) == 0:
        raise DataError(
            "A threshold attack needs two members, two others and one forgotten example at least, got "
            f"{len(members)}, {len(others)} and {len(forgotten)}."
        )
    generator = np.random.default_rng(seed)
    mine, theirs = generator.permutation(len(members)), generator.permutation(len(others))
    half, split = len(members) // 2, len(others) // 2
    known = members.at(mine[:half]), others.at(theirs[:split])
    recall = _call(*known, members.at(mine[half:])).mean()
    alarms = _call(*known, others.at(theirs[split:])).mean()
    return AttackResult(_call(members, others, forgotten), float(recall + 1 - alarms) / 2)


def correctness_attack(members: Values, others: Values, forgotten: Values) -> AttackResult:
    """Call members what the model gets right; each array (n,) of 0 and 1. There is nothing to learn.

    Raises:
        DataError: an array is empty.
    """
    if min(len(members), len(others), len(forgotten)) == 0:
        raise DataError("The correctness attack needs an example of each kind.")
    power = float(np.mean(members >= 1) + np.mean(others < 1)) / 2
    return AttackResult(forgotten >= 1, power)


def _call(members: Scored, others: Scored, asked: Scored) -> NDArray[np.bool_]:
    classes, index = np.unique(asked.labels, return_inverse=True)
    called: NDArray[np.bool_] = asked.scores >= class_thresholds(members, others, classes)[index]
    return called


def _log(values: Values) -> Values:
    result: Values = np.log(np.maximum(values, _FLOOR))
    return result


def _log_of_rest(values: Values) -> Values:
    """log(1 − values), digits kept where the values are small."""
    with np.errstate(divide="ignore"):
        result: Values = np.maximum(np.log1p(-np.minimum(values, 1.0)), np.log(_FLOOR))
    return result


def _check_posteriors(posteriors: Values) -> None:
    if posteriors.ndim != 2 or not np.isfinite(posteriors).all():
        raise DataError(f"Posteriors are finite and of shape (n, classes), got shape {posteriors.shape}.")
    if np.any(posteriors < 0) or not np.allclose(posteriors.sum(axis=1), 1, atol=1e-4):
        raise DataError("Each posterior's probabilities are not negative and add up to 1.")
