"""One measurement of the model: utility on three sets and what the membership attacks say.

Whatever cannot be measured is left empty and named with its reason; a missing number is never a zero.
"""

from collections.abc import Mapping, Sequence

from unlearning.verification.figures import (
    CONFIDENCE,
    CONFIDENCE_POWER,
    YEOM,
    AttackFigure,
    Measurement,
    SetMeasure,
    SetName,
    Stage,
)
from unlearning.verification.observations import Observations, Outputs
from unlearning.verification.standard_attacks import attack_figures


def measure(
    *,
    stage: Stage,
    round: int,  # noqa: A002 - the federation's word for it, and the field's name
    test: Observations | None,
    retained: Observations | None,
    forgotten: Observations | None,
    seed: int,
    reasons: Mapping[SetName, str] | None = None,
    outputs_before: Mapping[str, Outputs] | None = None,
    learns_change: bool = False,
    metric_names: Sequence[str] = (),
) -> Measurement:
    """Measure what can be measured, and say of the rest why not.

    retained is what the model may go on training on; its mean loss is the threshold of Yeom's attack
    at every stage, also before unlearning, so that the stages are comparable.
    reasons: why a set is missing, in part or as a whole (`{"forgotten": "client 3 was offline"}`), in
        words for the report.
    outputs_before: posteriors of the model before the deletion, by `test` and `forgotten`, for the attack
        on the change; None at the stage `before` itself.
    learns_change: whether classifiers attack the change too.
    metric_names: of the task's metrics of whole sets.
    """
    given = {"test": test, "retained": retained, "forgotten": forgotten}
    why = {str(name): reason for name, reason in (reasons or {}).items()}
    present: dict[str, Observations] = {}
    notes: list[str] = []
    for name, observations in given.items():
        if observations is None or observations.num_examples == 0:
            fallback = "no client reported any" if observations is None else "it holds no example"
            notes.append(f"{name} data: {why.get(name, fallback)}")
        else:
            present[name] = observations
            if name in why:
                notes.append(f"{name} data, in part: {why[name]}")
            notes.extend(_notes(name, observations))
    retained_set = present.get("retained")
    figures, reasons_of_attacks = attack_figures(
        present,
        mean_training_loss=None if retained_set is None else retained_set.mean_loss,
        outputs_before=outputs_before,
        seed=seed,
        learns_change=learns_change,
    )
    notes.extend(reasons_of_attacks)
    return Measurement(
        stage=stage,
        round=round,
        test=_summary(present.get("test"), metric_names),
        retained=_summary(present.get("retained"), metric_names),
        forgotten=_summary(present.get("forgotten"), metric_names),
        attacks=_shares(figures),
        figures=figures,
        not_measured=tuple(notes),
    )


def _summary(observations: Observations | None, metric_names: Sequence[str]) -> SetMeasure | None:
    if observations is None:
        return None
    return SetMeasure(
        observations.num_examples,
        observations.mean_loss,
        observations.mean_score,
        observations.named_metrics(metric_names),
    )


def _notes(name: str, observations: Observations) -> list[str]:
    notes = []
    if observations.mean_loss is None:
        notes.append(f"{name} loss: the model's loss on these data is not a finite number")
    if observations.mean_score is None:
        notes.append(f"{name} score: the model's score on these data is not a finite number")
    if len(observations.losses) < observations.num_examples:
        notes.append(
            f"{name} data: the attacks saw a random sample of {len(observations.losses):,} of "
            f"{observations.num_examples:,} examples"
        )
    return notes


def _shares(figures: Mapping[str, AttackFigure]) -> dict[str, float]:
    """Return the two attacks' shares by name, and the confidence attack's power."""
    shares = {
        name: figure.called.value
        for name, figure in figures.items()
        if name in (YEOM, CONFIDENCE) and figure.called is not None
    }
    power = figures[CONFIDENCE].balanced_accuracy if CONFIDENCE in figures else None
    return shares if power is None else {**shares, CONFIDENCE_POWER: power}
