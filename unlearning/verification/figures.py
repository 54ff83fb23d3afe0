"""What was measured of a model, as plain values: what a report holds, without the libraries that compute it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

Stage: TypeAlias = Literal["before", "unlearned", "recovery"]
SetName: TypeAlias = Literal["test", "retained", "forgotten"]

YEOM, CONFIDENCE = "yeom", "confidence"
MIA_U = "mia-u-euclidean"
RISE_OF_LOSS, FALL_OF_CONFIDENCE = "rise-of-loss", "fall-of-confidence"
CONFIDENCE_POWER = "confidence_balanced_accuracy"
CONFIDENCE_LEVEL = 0.95
MOST_EXAMPLES = 5_000
"""More on a side are subsampled: their intervals would hardly be narrower, and cost seconds."""


class Construction(StrEnum):
    """How two posteriors become features."""

    DIRECT_DIFFERENCE = "direct-difference"
    SORTED_DIFFERENCE = "sorted-difference"
    DIRECT_CONCAT = "direct-concat"
    SORTED_CONCAT = "sorted-concat"
    EUCLIDEAN = "euclidean"


LEARNT_MIA_U = {construction: f"mia-u-learnt-{construction}" for construction in Construction}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % interval, `low` ≤ `value` ≤ `high`."""

    value: float
    low: float
    high: float


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
    tpr: Annotated[Estimate | None, Field(alias="tpr_at_1_percent_fpr")] = None
    tpr_reason: str = ""
    num_forgotten: int = 0
    num_test: int = 0


@dataclass(frozen=True, slots=True)
class SetMeasure:
    """The mean loss and score over `num_examples`; None where the mean is not a finite number.

    metrics: of the whole set, by name, those that are defined; of several clients' data the mean of each client's own,
        weighted by examples.
    """

    num_examples: int
    loss: float | None
    score: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was measured of one model.

    stage: `before` unlearning, `unlearned` (before any recovery round), or after a `recovery` round.
    round: the federation's round number at which the model stood.
    test, retained, forgotten: None where the set could not be measured.
    attacks: by name, in [0, 1]: `yeom` and `confidence` are shares of the forgotten examples called
        members, `confidence_balanced_accuracy` is that attack's own power (0.5 is guessing).
    figures: every attack by name, with intervals.
    class_test: of a class, the share of the server's test records of it that the model still assigns to it; None where
        no class is forgotten or the server has no test records of it.
    not_measured: one phrase for each thing that could not be measured, with its reason.
    """

    stage: Stage
    round: int
    test: SetMeasure | None = None
    retained: SetMeasure | None = None
    forgotten: SetMeasure | None = None
    attacks: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, AttackFigure] = field(default_factory=dict)
    class_test: AttackFigure | None = None
    not_measured: tuple[str, ...] = ()

    def score(self, name: SetName) -> float | None:
        """Return the score on a set; None where it was not measured."""
        measure: SetMeasure | None = getattr(self, name)
        return None if measure is None else measure.score
