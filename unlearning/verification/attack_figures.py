"""Every attack that a live federation can run, on what clients and server observed, with intervals.

The positives are the forgotten examples, the negatives test examples, which were never trained on: an AUC
of 0.5 says that the attack cannot tell them apart. Test examples are weighted so that the classes are as
frequent among them as among the forgotten; otherwise a client with rare classes would stand out without
having been trained on. What an attack learns, it learns from retained (members) and test examples.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.verification.discrimination import Estimate, discriminate, share
from unlearning.verification.membership_inference import confidence_attack
from unlearning.verification.mia_u import distances
from unlearning.verification.observations import Details, Observations, Outputs
from unlearning.verification.thresholds import (
    CONFIDENCE_THRESHOLD,
    CORRECTNESS,
    ENTROPY,
    MODIFIED_ENTROPY,
    Scored,
    correctness_attack,
    threshold_attack,
)

Values = NDArray[np.float64]

YEOM, CONFIDENCE = "yeom", "confidence"
MIA_U = "mia-u-euclidean"
ATTACKS = (YEOM, CONFIDENCE, CORRECTNESS, CONFIDENCE_THRESHOLD, ENTROPY, MODIFIED_ENTROPY, MIA_U)

MOST_EXAMPLES = 5_000
"""More on a side are subsampled: their intervals would hardly be narrower, and cost seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackFigure:
    """What one attack says of the forgotten examples.

    called: the share that it calls members; None for attacks that only rank examples.
    balanced_accuracy: its own power on retained and test examples whose truth is known; 0.5 is guessing.
    auc, tpr: how well its score tells forgotten from test examples, the second at 1 % false positives;
        None where that was not measured. `tpr_reason` says why there is no `tpr`.
    num_forgotten, num_test: how many examples the figures rest on.
    """

    called: Estimate | None = None
    balanced_accuracy: float | None = None
    auc: Estimate | None = None
    tpr: Estimate | None = None
    tpr_reason: str = ""
    num_forgotten: int = 0
    num_test: int = 0

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` is the inverse."""
        return {
            "called": _to_json(self.called),
            "balanced_accuracy": self.balanced_accuracy,
            "auc": _to_json(self.auc),
            "tpr_at_1_percent_fpr": _to_json(self.tpr),
            "tpr_reason": self.tpr_reason,
            "num_forgotten": self.num_forgotten,
            "num_test": self.num_test,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "AttackFigure":
        """The inverse of `to_json`."""
        return cls(
            called=_from_json(value["called"]),
            balanced_accuracy=value["balanced_accuracy"],
            auc=_from_json(value["auc"]),
            tpr=_from_json(value["tpr_at_1_percent_fpr"]),
            tpr_reason=value["tpr_reason"],
            num_forgotten=value["num_forgotten"],
            num_test=value["num_test"],
        )


def attack_figures(
    present: Mapping[str, Observations],
    *,
    mean_training_loss: float | None,
    outputs_before: Mapping[str, Outputs] | None,
    seed: int,
) -> tuple[dict[str, AttackFigure], list[str]]:
    """Every attack that `present` (by `test`, `retained`, `forgotten`) allows, and why the others do not run.

    mean_training_loss: the threshold of Yeom's attack.
    outputs_before: posteriors of the model before the deletion, by `test` and `forgotten`; None where this
        measurement is of that model itself.
    """
    attacks: dict[str, Callable[[], dict[str, AttackFigure]]] = {
        "Yeom's attack": lambda: _yeom(present, mean_training_loss, seed),
        "confidence attack": lambda: _confidence(present, seed),
        "threshold attacks": lambda: _thresholds(present, seed),
        "MIA-U": lambda: _mia_u(present, outputs_before, seed),
    }
    figures: dict[str, AttackFigure] = {}
    notes: list[str] = []
    for title, run in attacks.items():
        try:
            figures |= run()
        except DataError as exc:
            notes.append(f"{title}: {exc}")
    return figures, notes


def _yeom(present: Mapping[str, Observations], threshold: float | None, seed: int) -> dict[str, AttackFigure]:
    _need(present, "retained", "forgotten")
    if threshold is None:
        raise DataError("there is no finite mean training loss to compare with")
    losses = present["forgotten"].losses
    if np.isnan(losses).any():
        raise DataError(f"{int(np.isnan(losses).sum()):,} of {len(losses):,} forgotten losses are no numbers")
    called = share(losses <= threshold)
    return {YEOM: _ranked(present, lambda observations: -observations.losses, seed, called=called)}


def _confidence(present: Mapping[str, Observations], seed: int) -> dict[str, AttackFigure]:
    _need(present, "retained", "test", "forgotten")
    forgotten = present["forgotten"].confidences
    result = confidence_attack(
        present["retained"].confidences, present["test"].confidences, forgotten, seed=seed
    )
    # the SVM learnt from these very test examples, so an AUC on them would flatter it
    figure = AttackFigure(
        called=share(np.arange(len(forgotten)) < round(result.score * len(forgotten))),
        balanced_accuracy=result.balanced_accuracy,
        num_forgotten=len(forgotten),
        num_test=len(present["test"].confidences),
    )
    return {CONFIDENCE: figure}


def _thresholds(present: Mapping[str, Observations], seed: int) -> dict[str, AttackFigure]:
    _need(present, "retained", "test", "forgotten")
    sides = [present[name] for name in ("retained", "test", "forgotten")]
    if any(observations.details is None for observations in sides):
        raise DataError("they need the details of a classification, which were not reported")
    figures = {}
    for name, score in _SCORES.items():
        if name == CORRECTNESS:
            result = correctness_attack(*(score(side) for side in sides))
        else:
            result = threshold_attack(*(_scored(side, score) for side in sides), seed=seed)
        figures[name] = _ranked(
            present, score, seed, called=share(result.called), power=result.balanced_accuracy
        )
    return figures


def _mia_u(
    present: Mapping[str, Observations], before: Mapping[str, Outputs] | None, seed: int
) -> dict[str, AttackFigure]:
    if before is None:
        return {}
    _need(present, "test", "forgotten")
    changes = {}
    for name in ("test", "forgotten"):
        older, newer = before.get(name), present[name].outputs
        if older is None or newer is None:
            raise DataError(f"the {name} data's posteriors before and after were not both reported")
        _, first, second = np.intersect1d(older.handles, newer.handles, return_indices=True)
        if not len(first):
            raise DataError(f"no sampled example of the {name} data was measured before and after")
        lengths = distances(
            older.posteriors[first].astype(np.float64), newer.posteriors[second].astype(np.float64)
        )
        details = present[name].details
        changes[name] = lengths, None if details is None else details.labels[second]
    return {MIA_U: _compared(changes["forgotten"], changes["test"], seed, AttackFigure())}


def _details(observations: Observations) -> Details:
    assert observations.details is not None, "checked before any score is taken"
    return observations.details


_SCORES: Mapping[str, Callable[[Observations], Values]] = {
    CORRECTNESS: lambda observations: _details(observations).correct,
    CONFIDENCE_THRESHOLD: lambda observations: observations.confidences,
    ENTROPY: lambda observations: -_details(observations).entropies,
    MODIFIED_ENTROPY: lambda observations: -_details(observations).modified_entropies,
}


def _scored(observations: Observations, score: Callable[[Observations], Values]) -> Scored:
    return Scored(score(observations), _details(observations).labels)


def _ranked(
    present: Mapping[str, Observations],
    score: Callable[[Observations], Values],
    seed: int,
    *,
    called: Estimate,
    power: float | None = None,
) -> AttackFigure:
    """The figure with its AUC, where there is a test set to rank against."""
    forgotten, test = present["forgotten"], present.get("test")
    figure = AttackFigure(called=called, balanced_accuracy=power, num_forgotten=len(forgotten.losses))
    if test is None or not len(test.losses):
        return figure
    return _compared((score(forgotten), _labels(forgotten)), (score(test), _labels(test)), seed, figure)


def _compared(
    forgotten: tuple[Values, NDArray[np.int64] | None],
    test: tuple[Values, NDArray[np.int64] | None],
    seed: int,
    figure: AttackFigure,
) -> AttackFigure:
    """`figure` with AUC and true-positive rate, or as it was where no class is on both sides."""
    generator = np.random.default_rng(seed)
    (mine, classes), (theirs, other_classes) = (_bounded(side, generator) for side in (forgotten, test))
    weights = np.ones(len(theirs))
    if classes is not None and other_classes is not None:
        shared = np.isin(classes, other_classes)
        mine, classes = mine[shared], classes[shared]
        _, index = np.unique(np.concatenate([other_classes, classes]), return_inverse=True)
        of_test, of_forgotten = np.split(index, [len(other_classes)])
        wanted = np.bincount(of_forgotten, minlength=len(index))
        weights = wanted[of_test] / np.bincount(of_test, minlength=len(index))[of_test]
    if not len(mine):
        return figure
    result = discriminate(mine, theirs, seed=seed, weights=weights)
    return AttackFigure(
        called=figure.called,
        balanced_accuracy=figure.balanced_accuracy,
        auc=result.auc,
        tpr=result.tpr,
        tpr_reason=result.tpr_reason,
        num_forgotten=len(mine),
        num_test=int(np.sum(weights > 0)),
    )


def _bounded(
    side: tuple[Values, NDArray[np.int64] | None], generator: np.random.Generator
) -> tuple[Values, NDArray[np.int64] | None]:
    values, labels = side
    if len(values) <= MOST_EXAMPLES:
        return side
    chosen = generator.permutation(len(values))[:MOST_EXAMPLES]
    return values[chosen], None if labels is None else labels[chosen]


def _labels(observations: Observations) -> NDArray[np.int64] | None:
    return None if observations.details is None else observations.details.labels


def _need(present: Mapping[str, Observations], *names: str) -> None:
    lacking = [name for name in names if name not in present]
    if lacking:
        raise DataError(f"it needs the {' and the '.join(lacking)} data")


def _to_json(estimate: Estimate | None) -> dict[str, float] | None:
    return None if estimate is None else estimate.to_json()


def _from_json(value: Mapping[str, Any] | None) -> Estimate | None:
    return None if value is None else Estimate.from_json(value)
