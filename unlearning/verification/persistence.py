"""Whether what a deletion was shown to achieve still shows after further training.

The model is attacked again and judged by the rule by which the deletion was judged (`unlearning.verification.verdict`):
each attack's figure of the model before the deletion is compared with that of today's model. Only attacks that ran all
three times count, on at least as many records as at the completion: fewer have wider intervals, which say less.

That an effect does not show any more is not enough to say that the records came back: a model that becomes better knows
records better that it never saw, also one that was retrained. They came back where an attack also tells them from
records that the model never saw today, or the test records of their class are recognised as before.

Source of the question: Lethe (arXiv 2601.22601), which calls the return of forgotten knowledge in later training
resurfacing. That such a return is looked for in a live federation, and reopens a request, is ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from unlearning.verification.figures import YEOM, AttackFigure, Measurement
from unlearning.verification.verdict import Finding, verdict

CLASS_TEST = "class-test"
"""The name of the figure of the server's own test records of a class."""
_SHOWN = (Finding.INDISTINGUISHABLE, Finding.REDUCED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """What a recheck says.

    now, then: what the attacks that count show of today's model and of the one at completion; None where none counts.
    is_recognised: whether an attack tells the records from unknown ones today, or the class is recognised.
    reasons: the sentences of today's verdict. missing: what could not be measured, or does not count, and why.
    """

    now: Finding | None
    then: Finding | None
    is_recognised: bool = False
    reasons: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def has_come_back(self) -> bool:
        """Whether an effect was shown at completion and is not today, and the model recognises the records."""
        return self.then in _SHOWN and self.now is Finding.NOT_SHOWN and self.is_recognised


def compare(before: Measurement, then: Measurement, now: Measurement) -> Persistence:
    """Return what is left of a deletion's effect, of the models before it, at its completion, and today."""
    figures = [_figures(one) for one in (before, then, now)]
    fewer = {
        name: (figures[2][name].num_forgotten, figures[1][name].num_forgotten)
        for name in figures[2].keys() & figures[1].keys()
        if figures[2][name].num_forgotten < figures[1][name].num_forgotten
    }
    names = set.intersection(*map(set, figures)) - fewer.keys()
    missing = list(now.not_measured)
    if fewer:
        few, many = min(fewer.values())
        missing.append(
            f"forgotten data: {few:,} records were measured, {many:,} at completion; so few decide nothing"
        )
    if not names:
        return Persistence(now=None, then=None, missing=tuple(missing))
    first, second, third = ({name: one[name] for name in sorted(names)} for one in figures)
    today = verdict(first, third)
    return Persistence(
        now=today.finding,
        then=verdict(first, second).finding,
        is_recognised=CLASS_TEST in third
        or any(one.auc is not None and one.auc.low > 0.5 for one in third.values()),
        reasons=today.reasons,
        missing=tuple(missing),
    )


def levels(measured: Measurement) -> dict[str, float]:
    """Return what the curve of rechecks is drawn of, each in [0, 1], as far as it was measured."""
    yeom = measured.figures.get(YEOM)
    found = {
        "score": measured.score("forgotten"),
        "auc": yeom.auc.value if yeom is not None and yeom.auc is not None else None,
        CLASS_TEST: measured.class_test.called.value
        if measured.class_test is not None and measured.class_test.called is not None
        else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _figures(measured: Measurement) -> dict[str, AttackFigure]:
    own: Mapping[str, AttackFigure] = {} if measured.class_test is None else {CLASS_TEST: measured.class_test}
    return {**measured.figures, **own}
