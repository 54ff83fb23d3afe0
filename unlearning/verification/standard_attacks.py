"""Every attack that a live federation can run, on what clients and server observed, with intervals.

The positives are the forgotten examples, the negatives test examples, which were never trained on: an AUC
of 0.5 says that the attack cannot tell them apart. What an attack learns, it learns from retained (members) and test
examples.
"""

from collections.abc import Callable, Mapping
from logging import getLogger

import numpy as np

from unlearning.errors import DataError
from unlearning.verification.attack_result import need, rank_against
from unlearning.verification.difference.membership import fall_of_confidence, rise_of_loss
from unlearning.verification.discrimination import share
from unlearning.verification.figures import (
    CONFIDENCE,
    FALL_OF_CONFIDENCE,
    MIA_U,
    RISE_OF_LOSS,
    YEOM,
    AttackFigure,
    Construction,
    Estimate,
)
from unlearning.verification.membership_inference import confidence_attack
from unlearning.verification.mia_u import construct
from unlearning.verification.observations import Details, Observations, Outputs
from unlearning.verification.optional_attacks import changes_of, learnt_mia_u
from unlearning.verification.thresholds import (
    CONFIDENCE_THRESHOLD,
    CORRECTNESS,
    ENTROPY,
    MODIFIED_ENTROPY,
    Labels,
    Scored,
    Values,
    correctness_attack,
    threshold_attack,
)

_log = getLogger(__name__)

ON_CHANGE = (MIA_U, RISE_OF_LOSS, FALL_OF_CONFIDENCE)
"""Those that compare with the model before the deletion, and so say nothing of that one."""

ATTACKS = (YEOM, CONFIDENCE, CORRECTNESS, CONFIDENCE_THRESHOLD, ENTROPY, MODIFIED_ENTROPY, *ON_CHANGE)
"""Those that run at every measurement; `optional_attacks` has the others."""


def attack_figures(
    present: Mapping[str, Observations],
    *,
    mean_training_loss: float | None,
    outputs_before: Mapping[str, Outputs] | None,
    seed: int,
    learns_change: bool = False,
) -> tuple[dict[str, AttackFigure], list[str]]:
    """Return every attack that `present` (by `test`, `retained`, `forgotten`) allows, and why the others do not run.

    mean_training_loss: the threshold of Yeom's attack.
    outputs_before: posteriors of the model before the deletion, by `test` and `forgotten`; None where this
        measurement is of that model itself.
    learns_change: MIA-U with classifiers too (`optional_attacks`).
    """
    attacks: dict[str, Callable[[], dict[str, AttackFigure]]] = {
        "Yeom's attack": lambda: _yeom(present, mean_training_loss, seed),
        "confidence attack": lambda: _confidence(present, seed),
        "threshold attacks": lambda: _thresholds(present, seed),
        "MIA-U": lambda: _on_change(present, outputs_before, seed),
    }
    if learns_change:
        attacks["MIA-U with classifiers"] = lambda: learnt_mia_u(present, outputs_before, seed)
    figures: dict[str, AttackFigure] = {}
    notes: list[str] = []
    for title, run in attacks.items():
        try:
            figures |= run()
        except DataError as exc:
            notes.append(f"{title}: {exc}")
        except Exception as exc:  # noqa: BLE001 - the figures are the clients', and a deletion does not wait for an attack
            _log.exception("%s cannot be computed", title)
            notes.append(f"{title}: it cannot be computed of what was observed ({type(exc).__name__})")
    return figures, notes


def _yeom(present: Mapping[str, Observations], threshold: float | None, seed: int) -> dict[str, AttackFigure]:
    need(present, "retained", "forgotten")
    if threshold is None:
        raise DataError("there is no finite mean training loss to compare with")
    losses = present["forgotten"].losses
    if np.isnan(losses).any():
        raise DataError(f"{int(np.isnan(losses).sum()):,} of {len(losses):,} forgotten losses are no numbers")
    called = share(losses <= threshold)
    return {YEOM: _rank(present, lambda observations: -observations.losses, seed, called=called)}


def _confidence(present: Mapping[str, Observations], seed: int) -> dict[str, AttackFigure]:
    need(present, "retained", "test", "forgotten")
    forgotten = present["forgotten"].confidences
    result = confidence_attack(
        present["retained"].confidences, present["test"].confidences, forgotten, seed=seed
    )
    # the SVM learnt from these very test examples, so an AUC on them would flatter it
    figure = AttackFigure(
        called=share(result.called),
        balanced_accuracy=result.balanced_accuracy,
        num_forgotten=len(forgotten),
        num_test=len(present["test"].confidences),
    )
    return {CONFIDENCE: figure}


def _thresholds(present: Mapping[str, Observations], seed: int) -> dict[str, AttackFigure]:
    need(present, "retained", "test", "forgotten")
    sides = [present[name] for name in ("retained", "test", "forgotten")]
    if any(observations.details is None for observations in sides):
        raise DataError("they need the details of a classification, which were not reported")
    figures = {}
    for name, score in _SCORES.items():
        if name == CORRECTNESS:
            result = correctness_attack(*(score(side) for side in sides))
        else:
            scored = (Scored(score(side), _details(side).labels) for side in sides)
            result = threshold_attack(*scored, seed=seed)
        figures[name] = _rank(
            present, score, seed, called=share(result.called), power=result.balanced_accuracy
        )
    return figures


def _on_change(
    present: Mapping[str, Observations], before: Mapping[str, Outputs] | None, seed: int
) -> dict[str, AttackFigure]:
    if before is None:
        return {}
    changes = changes_of(present, before)
    sides = (changes["forgotten"], changes["test"])
    # the one construction that needs no classifier, so nothing is spent on learning
    distances = [
        (construct(one.before, one.after, Construction.EUCLIDEAN)[:, 0], one.labels) for one in sides
    ]
    figures = {MIA_U: rank_against(distances[0], distances[1], seed, AttackFigure())}
    for name, score in ((RISE_OF_LOSS, rise_of_loss), (FALL_OF_CONFIDENCE, fall_of_confidence)):
        scored = [
            (score(one.before, one.after, one.labels), one.labels) for one in sides if one.labels is not None
        ]
        if len(scored) == len(sides):
            figures[name] = rank_against(scored[0], scored[1], seed, AttackFigure())
    return figures


def _details(observations: Observations) -> Details:
    assert observations.details is not None, "checked before any score is taken"
    return observations.details


def _sureness(observations: Observations) -> Values:
    """Return the margins, which order examples as confidences do, but apart from one another where these are all 1."""
    return observations.confidences if observations.margins is None else observations.margins


_SCORES: Mapping[str, Callable[[Observations], Values]] = {
    CORRECTNESS: lambda observations: _details(observations).correct,
    CONFIDENCE_THRESHOLD: _sureness,
    ENTROPY: lambda observations: -_details(observations).entropies,
    MODIFIED_ENTROPY: lambda observations: -_details(observations).modified_entropies,
}


def _rank(
    present: Mapping[str, Observations],
    score: Callable[[Observations], Values],
    seed: int,
    *,
    called: Estimate,
    power: float | None = None,
) -> AttackFigure:
    """Return the figure with its AUC, where there is a test set to rank against."""
    forgotten, test = present["forgotten"], present.get("test")
    figure = AttackFigure(called=called, balanced_accuracy=power, num_forgotten=len(forgotten.losses))
    if test is None or not len(test.losses):
        return figure
    return rank_against((score(forgotten), _labels(forgotten)), (score(test), _labels(test)), seed, figure)


def _labels(observations: Observations) -> Labels | None:
    return None if observations.details is None else observations.details.labels
