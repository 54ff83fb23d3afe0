"""What can be done about a request: the forms of its page, and of the list for several requests."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from starlette.datastructures import FormData

from server.console.filing import read_parameters
from server.console.forms import text_of
from server.console.rendering import Console
from server.ledger import Event
from server.ledger.texts import ERASED, TEXTS
from server.service.access import Caller, may_cancel
from unlearning.errors import InvalidRequest
from unlearning.gdpr import MAX_EXTENSION_DAYS, Amendment, today
from unlearning.requests import HOLDABLE_STATUSES, LEGAL_MOVES, DeletionRequest, Status

CONFIRMED, CHOSEN = "confirmed", "chosen"
"""Fields of forms: that the action is meant, and the requests that it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What decides whether a button is there."""

    caller: Caller
    request: DeletionRequest
    events: Sequence[Event]

    def may_become(self, status: Status) -> bool:
        """Return whether the request's state allows this one next."""
        return status in LEGAL_MOVES[self.request.status]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A form on the page, by the name of a verb of `server.service.calls`; `fields`: the verb's values (`FIELDS`).

    is_optional: the reason may be left out. is_shown: the form is open from the start.
    means: what a person confirms before it is done, because it cannot be undone; "" where it can.
    several: the button of a list, where it can be done to several requests at once.
    """

    heading: str
    button: str
    hint: str
    is_possible: Callable[[Situation], bool]
    fields: tuple[str, ...] = ()
    is_optional: bool = False
    means: str = ""
    several: str = ""
    is_shown: bool = False


ACTIONS: Mapping[str, Action] = {
    "accept": Action(
        heading="Accept it",
        button="Accept this request",
        several="Accept those chosen",
        hint="The deletion begins as soon as its turn comes, and once it has begun it cannot be taken back.",
        is_possible=lambda now: now.request.status is Status.AWAITING,
        is_shown=True,
    ),
    "cancel": Action(
        heading="Cancel it",
        button="Cancel this request",
        hint="It has not begun; its data trains again.",
        is_possible=lambda now: now.may_become(Status.CANCELLED) and may_cancel(now.caller, now.request),
        means="Nothing is erased: the data takes part in training again from the next round on. It cannot be taken "
        "back; to erase the data after all, file a new request.",
        is_shown=True,
    ),
    "retry": Action(
        heading="Try again",
        button="Try again",
        hint="It is scheduled again; this time more of the score may be lost, if you say so. With another method or "
        "other parameters a new request takes its place, with the same deadline.",
        is_possible=lambda now: now.request.status in (Status.FAILED, Status.REOPENED),
        fields=("accept_score_loss", "method", "parameters"),
        is_shown=True,
    ),
    "recheck": Action(
        heading="Attack it again",
        button="Recheck",
        hint="Between the next two rounds today's model is attacked for this request as at its completion. Where the "
        "effect does not show any more, the request is reopened.",
        is_possible=lambda now: now.request.status is Status.COMPLETED and not now.request.answered_by,
    ),
    "amend": Action(
        heading="Change ground, reference or note",
        button="Change",
        hint="The timeline says what was changed, and by whom. A text that was replaced stays in the ledger until "
        "the texts are erased.",
        is_possible=lambda now: now.request.status is not Status.VERIFYING,
        fields=("what",),
    ),
    "extend": Action(
        heading="Extend the deadline",
        button="Extend",
        hint="Once, while the deadline has not passed (GDPR Art. 12(3)). Inform the person of it and of the reason "
        "before the present deadline.",
        is_possible=lambda now: (
            not (now.request.is_answered or now.request.extended_days or now.request.is_overdue(today()))
        ),
        fields=("days", "reason"),
    ),
    "hold": Action(
        heading="Hold it",
        button="Hold",
        several="Hold those chosen",
        hint="It does not begin, because the data must be kept by law. The deadline runs on.",
        is_possible=lambda now: now.request.status in HOLDABLE_STATUSES and not now.request.is_held,
        fields=("reason",),
    ),
    "release": Action(
        heading="Lift the hold",
        button="Lift the hold",
        hint="It goes on where it was.",
        is_possible=lambda now: now.request.is_held,
        fields=("reason",),
        is_optional=True,
    ),
    "refuse": Action(
        heading="Refuse it",
        button="Refuse",
        hint="It is answered without deletion, permanently; inform the person of the reason (Art. 12(4)).",
        is_possible=lambda now: now.may_become(Status.REFUSED),
        fields=("reason",),
        means="Nothing is erased: the data takes part in training again. It cannot be taken back. Tell the person the "
        "reason within one month of the request's receipt, and that they may complain to the supervisory authority "
        "and go to court (Art. 12(4)).",
    ),
    "redact": Action(
        heading="Erase its texts",
        button="Erase reference, note and reasons",
        hint="Permanently. The ledger's chain of hashes stays whole. Why the request was refused stays too, if you do "
        "not say otherwise: it proves that the person was answered.",
        is_possible=lambda now: has_texts(now.events),
        fields=("include_refusal",),
        means="The texts are erased from the ledger and cannot be brought back. Exports and older backups still have "
        "them.",
    ),
}
"""What can be done about a request: a new verb of the service needs its entry here, and the page has its form."""
BULK = tuple(name for name, action in ACTIONS.items() if action.several)
"""The actions that can be done to several requests at once."""


def do(console: Console, name: str, request_id: str, form: FormData) -> DeletionRequest:
    """Do what a form says to one request; return it, or the one that took its place.

    Raises:
        RequestError: the form or the service refuses it.
    """
    given = {key: value for field in ACTIONS[name].fields for key, value in FIELDS[field](form).items()}
    return console.service.change(name, request_id, by=console.caller.name, **given)


def call_of(action: str) -> str:
    """Return the service's call that an action makes, by which roles are checked."""
    return f"{action.capitalize()}Request"


def has_texts(events: Iterable[Event]) -> bool:
    """Return whether a request has texts of people that are not erased, also such that were replaced since."""
    details = [event.detail for event in events]
    written = {named["number"] for detail in details for named in detail.get(TEXTS, {}).values()}
    return bool(written.difference(*(detail.get(ERASED, ()) for detail in details)))


def _number(form: FormData, name: str, kind: type[int] | type[float], what: str) -> Mapping[str, float]:
    text = text_of(form, name)[:40]
    try:
        return {name: kind(text)}
    except ValueError:
        raise InvalidRequest(f"{what}, got {text!r}.") from None


FIELDS: Mapping[str, Callable[[FormData], Mapping[str, Any]]] = {
    "accept_score_loss": lambda form: _number(
        form, "accept_score_loss", float, "The accepted loss is a number of points"
    ),
    "method": lambda form: {"method": text_of(form, "method")},
    "parameters": lambda form: {"parameters": read_parameters(text_of(form, "parameters"))},
    "include_refusal": lambda form: {"include_refusal": "include_refusal" in form},
    "days": lambda form: _number(
        form, "days", int, f"An extension is a number of days from 1 to {MAX_EXTENSION_DAYS}"
    ),
    "reason": lambda form: {"reason": text_of(form, "reason")},
    "what": lambda form: {
        item.name: text_of(form, item.name) for item in fields(Amendment) if item.name in form
    },
}
"""How a form's fields are read into the verb's values; templates/parts.html has what each looks like."""
