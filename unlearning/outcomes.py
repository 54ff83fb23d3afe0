"""What a completed deletion achieved, in words for the person who must answer: beside that it was carried out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from unlearning.requests import UNSHOWN_OUTCOMES, DeletionRequest, Outcome, Status

WEAKEST_GUARANTEE = 10.0
"""Of ε: a larger one lets an observer's odds grow by more than e^10, which guarantees nothing."""
PRIVACY_ACCOUNT = "privacy account"
"""The finding of a report, and the key in a request's result, that hold the account."""
RELEASE = "privacy_release"
"""The key under which findings and a request's result hold the release of a model with noise."""
NEVER_USED = "never_used"
"""The finding of a report, and the key in a request's result, that say why there was nothing to unlearn."""
_NOT_SAID = "Do not tell the person that the model has lost them."


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What is proven of the model: who sees it learns at most this much of whether the records were ever used."""

    epsilon: float
    delta: float


def guarantee_of(account: Mapping[str, Any] | None) -> Guarantee | None:
    """Return what the privacy account of a deletion proves; None where it is nothing that protects."""
    if account is None or account["basis"] != "proven" or account["spent_epsilon"] is None:
        return None
    found = Guarantee(account["spent_epsilon"], account["delta"])
    return found if found.epsilon <= WEAKEST_GUARANTEE else None


def has_noise(found: Mapping[str, Any]) -> bool:
    """Tell from findings or a request's result whether the unlearned model has noise.

    Then nothing after it may depend on the model before, and no figure of the records may be published.
    """
    return bool((found.get(RELEASE) or {}).get("sigma"))


def weakest(outcomes: Iterable[Outcome | None]) -> Outcome | None:
    """Return the weakest of several outcomes; None where one is not known, or there is none."""
    order: list[Outcome | None] = [None, *Outcome]
    return min(outcomes, key=order.index, default=None)


def is_shown(outcome: Outcome) -> bool:
    """Return whether something may be said of the model, beside that the records are not used any more."""
    return outcome not in UNSHOWN_OUTCOMES


def describe_request(request: DeletionRequest) -> str:
    """Return what may be told of a request's deletion; empty before there is an outcome, and after it was reopened."""
    if request.outcome is None or request.status is not Status.COMPLETED:
        return ""
    proven = guarantee_of(request.result.get(PRIVACY_ACCOUNT))
    count, never_used = request.target.num_samples or None, bool(request.result.get(NEVER_USED))
    return describe(request.outcome, count, proven, never_used=never_used)


def describe(
    outcome: Outcome,
    num_records: int | None = None,
    guarantee: Guarantee | None = None,
    *,
    never_used: bool = False,
) -> str:
    """Return what the officer may tell the person; never that data are forgotten.

    num_records: how many there are, where they are named. never_used: whether no round has used them.
    """
    count = 0 if num_records is None else num_records
    these = "the records" if not count else "this record" if count == 1 else f"these {count:,} records"
    unused = "They are not used any more."
    match outcome:
        case Outcome.NOT_SHOWN:
            return (
                f"We could not show that the model knows less about {these} than before. {unused} {_NOT_SAID}"
            )
        case Outcome.TOO_FEW:
            return (
                f"Tests cannot show whether the model knows less about {these} than before: there are too few. "
                f"{unused} {_NOT_SAID}"
            )
        case Outcome.OVER_FORGETTING:
            return (
                f"By at least one test the model knows {these} worse than records that it has never seen. They stand "
                f"out: the deletion went too far. {unused} {_NOT_SAID}"
            )
        case Outcome.REDUCED:
            return (
                f"At least one of the tests used here recognises {these} less than before, and none does more. "
                f"{unused} This does not show that the model has lost them."
            )
        case Outcome.INDISTINGUISHABLE:
            return f"By these tests the model cannot be told from one that was trained again without {these}."
        case Outcome.RETRAINED if never_used:
            return (
                f"The model was trained without {these}: they were used in no round. This rests on the server's record "
                "of who took part."
            )
        case Outcome.RETRAINED:
            return (
                f"The model comes from training without {these}. This rests on how the method works, and on the "
                "statements of the computers that took part; no test is needed for it."
            )
        case Outcome.GUARANTEED:
            figures = (
                "" if guarantee is None else f" (ε = {guarantee.epsilon:.3g}, δ = {guarantee.delta:.3g})"
            )
            return (
                f"There is a mathematical guarantee{figures}: the model hardly tells whether {these} were ever used. "
                "The certificate says what the guarantee rests on."
            )
