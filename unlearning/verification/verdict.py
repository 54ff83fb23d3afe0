"""The verdict on one deletion, one of three; the rule in words is in docs/verification.md.

    an attack weakened      its 95 % interval after lies below that before, and its AUC is nearer to 0.5
    an attack strengthened  the two intervals are apart, and its AUC is further from 0.5

Where an attack has no AUC, its share of forgotten examples called members stands in: lower is weaker.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from unlearning.verification.attack_figures import AttackFigure
from unlearning.verification.discrimination import Estimate

Figures = Mapping[str, AttackFigure]


class Finding(StrEnum):
    """What may be said of a deletion. Never "forgotten": no attack shows that."""

    INDISTINGUISHABLE = "indistinguishable from retraining by these attacks"
    REDUCED = "reduced"
    NOT_SHOWN = "not shown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding, and one sentence for each attack that speaks for or against it."""

    finding: Finding
    reasons: tuple[str, ...]


def verdict(before: Figures | None, after: Figures | None, retrained: Figures | None = None) -> Verdict:
    """The verdict from the attacks' figures of the models before, after, and retrained where there is one."""
    if not after:
        return Verdict(Finding.NOT_SHOWN, ("No attack was run on the model after the deletion.",))
    if retrained is not None:
        apart = _apart(after, retrained)
        if apart is not None and not apart:
            return Verdict(
                Finding.INDISTINGUISHABLE,
                (
                    "Every attack's figure lies in the 95 % interval of the retrained model's, and that in its.",
                ),
            )
    if not before:
        return Verdict(Finding.NOT_SHOWN, ("No attack was run on the model before the deletion.",))
    weaker, stronger = [], []
    for name in sorted(set(before) & set(after)):
        pair = _figures(before[name], after[name])
        if pair is None:
            continue
        what, older, newer = pair
        sentence = f"{name}: {what} {_text(older)} before, {_text(newer)} after"
        if _weakened(what, older, newer):
            weaker.append(f"{sentence}.")
        elif _strengthened(what, older, newer):
            stronger.append(f"{sentence}: the forgotten examples stand out more than before.")
    if stronger:
        return Verdict(Finding.NOT_SHOWN, tuple(stronger))
    if weaker:
        return Verdict(Finding.REDUCED, tuple(weaker))
    return Verdict(Finding.NOT_SHOWN, ("No attack's figure changed by more than its 95 % interval.",))


def _weakened(what: str, older: Estimate, newer: Estimate) -> bool:
    nearer = what == "share" or abs(newer.value - 0.5) < abs(older.value - 0.5)
    return newer.high < older.low and nearer


def _strengthened(what: str, older: Estimate, newer: Estimate) -> bool:
    if what == "share":
        return newer.low > older.high
    are_apart = newer.high < older.low or newer.low > older.high
    return are_apart and abs(newer.value - 0.5) > abs(older.value - 0.5)


def _figures(before: AttackFigure, after: AttackFigure) -> tuple[str, Estimate, Estimate] | None:
    """The figure that decides for an attack: its AUC, else its share; None where no two can be compared."""
    if before.auc is not None and after.auc is not None:
        return "AUC", before.auc, after.auc
    if before.called is not None and after.called is not None:
        return "share", before.called, after.called
    return None


def _apart(after: Figures, retrained: Figures) -> list[str] | None:
    """The attacks that tell the two models apart; None where not every attack has both, or none has an AUC."""
    if set(after) != set(retrained):
        return None
    has_auc, apart = False, []
    for name, figure in after.items():
        pair = _figures(figure, retrained[name])
        if pair is None:
            return None
        what, one, other = pair
        has_auc |= what == "AUC"
        agree = other.low <= one.value <= other.high and one.low <= other.value <= one.high
        if not agree:
            apart.append(name)
    return apart if has_auc else None


def _text(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"
