"""What an officer may tell the person about a request, in words without machine learning."""

from collections.abc import Mapping
from datetime import date

from unlearning.outcomes import describe_request
from unlearning.requests import DeletionRequest, Outcome, Status

OUTCOME_WORDS: Mapping[Outcome, str] = {outcome: str(outcome).replace("-", " ") for outcome in Outcome} | {
    Outcome.TOO_FEW: "too few records to show",
    Outcome.OVER_FORGETTING: "went too far",
}
"""What a list says beside `carried out`."""
_UNDER_WAY = (
    "Your request reached us on {received}. Since it was filed here, your records take no part in training. "
    "You will have our answer by {due}."
)
_SENTENCES: Mapping[Status, str] = {
    Status.RECEIVED: _UNDER_WAY,
    Status.AWAITING: _UNDER_WAY,
    Status.ACCEPTED: _UNDER_WAY,
    Status.SCHEDULED: _UNDER_WAY,
    Status.UNLEARNING: _UNDER_WAY,
    Status.RECOVERING: _UNDER_WAY,
    Status.VERIFYING: _UNDER_WAY,
    Status.FAILED: (
        "Your request reached us on {received}. It is not carried out yet. You will have our answer by {due}."
    ),
    Status.REOPENED: (
        "Your request reached us on {received}. Your records take no part in training. A later test no longer shows "
        "that the model knows less about them than before, so we work on it again."
    ),
    Status.CANCELLED: "Your request of {received} was withdrawn. Nothing was erased.",
    Status.REFUSED: (
        "We do not erase your records. The reason: {reason} You may complain to the supervisory authority, and you may "
        "go to court."
    ),
}


def tell(request: DeletionRequest) -> str:
    """Return the answer as it can be given today; "" where there is none to give."""
    if request.status is Status.COMPLETED:
        return describe_request(request)
    sentence = _SENTENCES.get(request.status, "")
    return sentence.format(
        received=_day(request.received_on),
        due=_day(request.due_on),
        reason=request.refusal_reason or "(it was erased here).",
    )


def _day(day: date) -> str:
    return f"{day:%-d %B %Y}"
