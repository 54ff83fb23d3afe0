"""What a recheck says, on figures that can be read off."""

import pytest

from unlearning.verification.figures import YEOM, AttackFigure, Estimate, Measurement, SetMeasure
from unlearning.verification.persistence import CLASS_TEST, compare, levels
from unlearning.verification.verdict import Finding


def of(auc: float | None = None, recognised: float | None = None, num: int = 100) -> Measurement:
    """A measurement in which the loss attack has this AUC, and so much of the class's test records is recognised."""
    figures = {} if auc is None else {YEOM: AttackFigure(auc=interval(auc), num_forgotten=num)}
    of_class = None if recognised is None else AttackFigure(called=interval(recognised), num_forgotten=20)
    return Measurement(stage="recovery", round=1, figures=figures, class_test=of_class)


def interval(value: float) -> Estimate:
    """A figure known to 0.03."""
    return Estimate(value, value - 0.03, value + 0.03)


@pytest.mark.parametrize(
    ("before", "then", "now", "finding", "has_come_back"),
    [
        (0.8, 0.6, 0.62, Finding.REDUCED, False),
        (0.8, 0.6, 0.78, Finding.NOT_SHOWN, True),
        (0.8, 0.6, 0.95, Finding.NOT_SHOWN, True),
        (0.8, 0.79, 0.8, Finding.NOT_SHOWN, False),
        (0.6, 0.5, 0.35, Finding.OVER_FORGETTING, False),
    ],
    ids=["holds", "came back", "stronger than before", "was never shown", "went further"],
)
def test_a_deletion_has_come_back_where_its_effect_was_shown_and_is_not_any_more(
    before, then, now, finding, has_come_back
):
    """By the rule by which the deletion was judged."""
    found = compare(of(before), of(then), of(now))
    assert (found.now, found.has_come_back) == (finding, has_come_back)


def test_an_effect_that_fades_because_the_model_became_better_has_not_come_back():
    """No attack tells the records from unknown ones then; a retrained model does the same."""
    found = compare(of(0.48), of(0.4), of(0.47))
    assert (found.then, found.now, found.has_come_back) == (Finding.OVER_FORGETTING, Finding.NOT_SHOWN, False)
    wide = [
        Measurement(stage="recovery", round=1, figures={YEOM: AttackFigure(called=interval(share))})
        for share in (0.8, 0.5, 0.8)
    ]
    assert compare(*wide).now is Finding.NOT_SHOWN
    assert not compare(*wide).has_come_back


def test_fewer_records_than_at_completion_decide_nothing():
    """Their wider intervals would say that the effect is gone."""
    found = compare(of(0.8), of(0.6), of(0.8, num=40))
    assert (found.now, found.has_come_back) == (None, False)
    assert "40 records were measured, 100 at completion" in found.missing[0]


def test_a_class_is_judged_by_the_servers_records_where_nothing_else_was_measured():
    """Only what was measured all three times counts."""
    found = compare(of(0.8, 0.9), of(0.6, 0.1), of(None, 0.9))
    assert (found.then, found.now) == (Finding.REDUCED, Finding.NOT_SHOWN)
    assert found.has_come_back


def test_the_levels_of_a_curve_are_those_that_were_measured():
    """A set that was not measured has no level."""
    measured = Measurement(
        stage="recovery",
        round=1,
        forgotten=SetMeasure(10, 0.5, 0.7),
        figures=of(0.6).figures,
        class_test=of(None, 0.2).class_test,
    )
    assert levels(measured) == {"score": 0.7, "auc": 0.6, CLASS_TEST: 0.2}
    assert levels(of(0.6)) == {"auc": 0.6}
