"""The verdict on one deletion; the rule in words is in docs/explanation-what-a-report-claims.md.

How much an attack finds is the distance of its AUC from ½: an attacker that finds the forgotten examples below the
others turns the sign and has 1 − AUC. An interval of the AUC that holds ½ gives a distance from 0 on.

    weaker           the distance's 95 % interval after lies below that before
    stronger         it lies above
    over-forgetting  the AUC's interval after lies below ½ and below that before, and the attack is not weaker: the
                     examples stand out by being known worse than unknown ones

Where an attack has no AUC, its share of forgotten examples called members stands in: lower is weaker. It cannot tell
that a deletion went too far, so the AUCs decide first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from unlearning.requests import Outcome
from unlearning.verification.auc_interval import narrowest_interval
from unlearning.verification.figures import CONFIDENCE_LEVEL, MOST_EXAMPLES, AttackFigure, Estimate

Figures = Mapping[str, AttackFigure]

WIDEST_ALIKE = 0.2
"""Of an AUC's 95 % interval: wider ones do not contradict anything, so that two models agree in them says nothing."""


class Finding(StrEnum):
    """What may be said of a deletion. Never "forgotten": no attack shows that."""

    INDISTINGUISHABLE = "indistinguishable from retraining by these attacks"
    REDUCED = "reduced"
    OVER_FORGETTING = "over-forgetting"
    TOO_FEW = "too few to say"
    NOT_SHOWN = "not shown"


_OUTCOMES: Mapping[Finding, Outcome] = {
    Finding.INDISTINGUISHABLE: Outcome.INDISTINGUISHABLE,
    Finding.REDUCED: Outcome.REDUCED,
    Finding.OVER_FORGETTING: Outcome.OVER_FORGETTING,
    Finding.TOO_FEW: Outcome.TOO_FEW,
    Finding.NOT_SHOWN: Outcome.NOT_SHOWN,
}


def outcome_of(finding: Finding, *, is_exact: bool, is_guaranteed: bool) -> Outcome:
    """Return a deletion's outcome: what is proven of it, else what its method is, else what the attacks say.

    is_exact: whether the model was trained without the data. is_guaranteed: whether an (ε, δ) is proven.
    """
    if is_guaranteed:
        return Outcome.GUARANTEED
    return Outcome.RETRAINED if is_exact else _OUTCOMES[finding]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding, and one sentence for each attack that speaks for or against it."""

    finding: Finding
    reasons: tuple[str, ...]


def verdict(before: Figures | None, after: Figures | None, retrained: Figures | None = None) -> Verdict:
    """Return the verdict from the attacks' figures of the models before, after, and retrained where there is one."""
    if not after:
        return Verdict(Finding.NOT_SHOWN, ("No attack was run on the model after the deletion.",))
    is_alike = retrained is not None and _is_alike(after, retrained)
    wide = _too_wide(after, retrained) if is_alike and retrained is not None else ()
    if is_alike and not wide:
        reason = "Every attack's figure lies in the 95 % interval of the retrained model's, and that in its."
        return Verdict(Finding.INDISTINGUISHABLE, (reason,))
    if wide and not before:
        return Verdict(Finding.TOO_FEW, wide)
    if not before:
        return Verdict(Finding.NOT_SHOWN, ("No attack was run on the model before the deletion.",))
    found = _compare(before, after)
    for finding, change in (
        (Finding.NOT_SHOWN, _STRONGER),
        (Finding.OVER_FORGETTING, _OVER),
        (Finding.REDUCED, _WEAKER),
    ):
        if found[change]:
            others = found[_OVER] if change == _STRONGER else []
            return Verdict(finding, (*found[change], *others))
    if wide or (wide := _too_few(before, after)):
        return Verdict(Finding.TOO_FEW, wide)
    return Verdict(Finding.NOT_SHOWN, (_UNCHANGED,))


def is_enough(num_examples: int) -> bool:
    """Return whether so many forgotten examples can give an AUC an interval that is narrow enough to say something."""
    low, high = _narrowest(0.5, num_examples)
    return high - low <= WIDEST_ALIKE


@cache
def least_auc(num_examples: int) -> float | None:
    """Return the smallest AUC before a deletion from which a fall to ½ can show with so many forgotten examples.

    None where no fall can: then a verdict can never be that something is reduced. This is the best case, of many test
    examples whose scores spread as those of the forgotten.
    """
    reach = _narrowest(0.5, num_examples)[1]
    percent = range(50, 101)
    return next((one / 100 for one in percent if _narrowest(one / 100, num_examples)[0] > reach), None)


def _narrowest(auc: float, num_examples: int) -> tuple[float, float]:
    return narrowest_interval(auc, num_examples, MOST_EXAMPLES, level=CONFIDENCE_LEVEL)


_UNCHANGED = (
    "No attack's figure, which is its AUC where it has one, changed by more than its 95 % interval. That fewer "
    "forgotten records are recognised does not count where there is an AUC: fewer unseen ones may be recognised, too."
)
_WEAKER, _STRONGER, _OVER = "weaker", "stronger", "over-forgetting"


def _compare(before: Figures, after: Figures) -> dict[str, list[str]]:
    """Return a sentence for each attack that changed by more than its interval, by how it did."""
    found: dict[str, list[str]] = {_WEAKER: [], _STRONGER: [], _OVER: []}
    for name in sorted(set(before) & set(after)):
        pair = _figures(before[name], after[name])
        if pair is None:
            continue
        what, older, newer = pair
        change, remark = _change(what, older, newer)
        if change:
            sentence = f"{name}: {what} {_text(older)} before, {_text(newer)} after"
            found[change].append(f"{sentence}{remark}.")
    return found


def _change(what: str, older: Estimate, newer: Estimate) -> tuple[str, str]:
    """Return how an attack changed (empty where by no more than its interval), and what to say of that."""
    is_below = what == "AUC" and newer.high < min(0.5, older.low)
    remark = ""
    if is_below:
        remark = (
            f": the forgotten examples are known worse than unknown ones, and an attacker who turns the sign has "
            f"{1 - newer.value:.3f}"
        )
    one, other = (item if what == "share" else _distance(item) for item in (older, newer))
    if other.high < one.low:
        return _WEAKER, remark
    if is_below:
        return _OVER, remark
    if other.low > one.high:
        return _STRONGER, ": the forgotten examples stand out more than before"
    return "", ""


def _distance(area: Estimate) -> Estimate:
    """Compute |AUC − ½| with its interval."""
    ends = sorted((abs(area.low - 0.5), abs(area.high - 0.5)))
    holds_half = area.low <= 0.5 <= area.high
    return Estimate(abs(area.value - 0.5), 0.0 if holds_half else ends[0], ends[1])


def _figures(before: AttackFigure, after: AttackFigure) -> tuple[str, Estimate, Estimate] | None:
    """Return the figure that decides for an attack: its AUC, else its share; None where no two can be compared."""
    if before.auc is not None and after.auc is not None:
        return "AUC", before.auc, after.auc
    if before.called is not None and after.called is not None:
        return "share", before.called, after.called
    return None


def _is_alike(after: Figures, retrained: Figures) -> bool:
    """Return whether every attack's figure of either model lies in the other's interval, one of them being an AUC."""
    pairs = [_figures(figure, retrained[name]) for name, figure in after.items() if name in retrained]
    if set(after) != set(retrained) or not any(pair is not None and pair[0] == "AUC" for pair in pairs):
        return False
    return all(
        pair is not None
        and pair[2].low <= pair[1].value <= pair[2].high
        and pair[1].low <= pair[2].value <= pair[1].high
        for pair in pairs
    )


def _too_wide(after: Figures, retrained: Figures) -> tuple[str, ...]:
    """Return a sentence for each attack whose AUC is known too roughly for a likeness to mean anything."""
    reasons = []
    for name in sorted(after):
        pair = _figures(after[name], retrained[name])
        if pair is None or pair[0] != "AUC":
            continue
        width = max(estimate.high - estimate.low for estimate in pair[1:])
        if width > WIDEST_ALIKE:
            reasons.append(
                f"{name}: AUC {_text(pair[1])} after, {_text(pair[2])} of the retrained model. An interval {width:.2f} "
                f"wide agrees with almost anything; {WIDEST_ALIKE} is allowed. Measure more examples."
            )
    return tuple(reasons)


def _too_few(before: Figures, after: Figures) -> tuple[str, ...]:
    """Return a sentence where every attack's AUC is known so roughly that no change means nothing."""
    pairs = [_figures(before[name], after[name]) for name in sorted(set(before) & set(after))]
    widths = [
        max(one.high - one.low for one in pair[1:]) for pair in pairs if pair is not None and pair[0] == "AUC"
    ]
    if not widths or min(widths) <= WIDEST_ALIKE:
        return ()
    return (
        f"Nothing changed by more than its 95 % interval, and every AUC's interval is {min(widths):.2f} wide or more: "
        f"so few examples agree with almost anything; {WIDEST_ALIKE} is allowed.",
    )


def _text(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"
