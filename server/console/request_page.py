"""One request's page: its state and history, what may be done about it, and how the model's figures changed."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from server.console.federation_page import describe_round, figure
from server.console.filing import read_parameters
from server.console.forms import text_of, texts_of
from server.console.rendering import Console
from server.console.telling import tell
from server.ledger import Event
from server.ledger.records import SUBMITTED
from server.ledger.texts import ERASED, TEXTS
from server.report import words
from server.service.access import Caller, may_cancel
from server.service.narrator import GOING_ON, MEANINGS
from server.service.statuses import AccessDenied
from unlearning.advice import advice_for
from unlearning.errors import IllegalMove, InvalidRequest, RequestError, RequestNotFound
from unlearning.gdpr import MAX_EXTENSION_DAYS, Amendment, one_month_after, today
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
        is_possible=lambda now: now.request.status is Status.FAILED,
        fields=("accept_score_loss", "method", "parameters"),
        is_shown=True,
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


def request_page(
    console: Console,
    request: Request,
    errors: Mapping[str, str] | None = None,
    status: int = 200,
    typed: Mapping[str, str] | None = None,
) -> Response:
    """Show one request."""
    known = console.mirror.now()
    asked = console.find(request.path_params["id"])
    events, _ = console.service.events(asked.id)
    now, failed = Situation(caller=console.caller, request=asked, events=events), errors or {}
    headline, problem, reasons = _outcome(console, asked)
    return console.render(
        request,
        "request.html",
        status=status,
        live=status == 200,
        known=known,
        asked=asked,
        meaning=GOING_ON.get(asked.status, MEANINGS[asked.status]),
        timeline=[(event.at, _what(event), event.actor, _why(event)) for event in events],
        attempts=_failed_attempts(events),
        rounds=[record for record in known.rounds if asked.id in record.request_ids],
        describe_round=describe_round,
        figure=figure,
        headline=headline,
        problem=problem,
        advice=advice_for(asked),
        reasons=reasons,
        actions={
            name: action
            for name, action in ACTIONS.items()
            if name in failed or (console.may(call_of(name)) and action.is_possible(now))
        },
        extensions=_extensions(asked),
        tell=tell(asked),
        errors=failed,
        typed={item.name: getattr(asked, item.name) or "" for item in fields(Amendment)} | dict(typed or {}),
    )


def act(console: Console, request: Request, form: FormData) -> Response:
    """Do what a form says, and show the request after it; a refusal is shown beside the button."""
    name, request_id = request.path_params["action"], request.path_params["id"]
    if name not in ACTIONS:
        raise InvalidRequest(f"A request's page has no action {name[:40]!r}.")
    if is_to_confirm(console, name, form):
        return confirm_page(console, request, name, [console.find(request_id)], form)
    try:
        done = do(console, name, request_id, form)
    except RequestNotFound:
        raise
    except RequestError as exc:
        status = 403 if isinstance(exc, AccessDenied) else 409
        return request_page(console, request, {name: str(exc)}, status, texts_of(form))
    return RedirectResponse(f"/requests/{done.id}", status_code=303)


def do(console: Console, name: str, request_id: str, form: FormData) -> DeletionRequest:
    """Do what a form says to one request; return it, or the one that took its place.

    Raises:
        RequestError: the form or the service refuses it.
    """
    given = {key: value for field in ACTIONS[name].fields for key, value in FIELDS[field](form).items()}
    return console.service.change(name, request_id, by=console.caller.name, **given)


def is_to_confirm(console: Console, name: str, form: FormData) -> bool:
    """Return whether a person has to confirm the action first; what the service refuses needs none."""
    return bool(ACTIONS[name].means) and console.may(call_of(name)) and not form.get(CONFIRMED)


def confirm_page(
    console: Console, request: Request, name: str, asked: Sequence[DeletionRequest], form: FormData
) -> Response:
    """Ask whether an action is meant: what it does, to which requests, and what is still to be said for it."""
    typed = {key: value for key, value in texts_of(form).items() if key != CHOSEN}
    return console.render(
        request,
        "confirm.html",
        page="confirm",
        verb=name,
        action=ACTIONS[name],
        asked=asked,
        typed=typed,
        missing=[field for field in ACTIONS[name].fields if field not in typed],
        path=request.url.path,
    )


def call_of(action: str) -> str:
    """Return the service's call that an action makes, by which roles are checked."""
    return f"{action.capitalize()}Request"


def has_texts(events: Iterable[Event]) -> bool:
    """Return whether a request has texts of people that are not erased, also such that were replaced since."""
    details = [event.detail for event in events]
    written = {named["number"] for detail in details for named in detail.get(TEXTS, {}).values()}
    return bool(written.difference(*(detail.get(ERASED, ()) for detail in details)))


def _outcome(console: Console, asked: DeletionRequest) -> tuple[list[tuple[str, str, str]], str, list[str]]:
    """Return the figures that the report puts first, why there is none, and why it says what it does."""
    if asked.status is not Status.COMPLETED:
        return [], "", []
    try:
        report = json.loads(console.report(asked.id).json)
    except IllegalMove as exc:
        return [], str(exc), []
    attacks = report["attacks"]
    return words.headline(report), "", attacks["reasons"]


def _extensions(asked: DeletionRequest) -> list[tuple[int, str]]:
    """Return by how many days a deadline can be extended, and what the officer reads: months and the new date."""
    one = one_month_after(asked.due_on)
    days = [(number, (later - asked.due_on).days) for number, later in ((1, one), (2, one_month_after(one)))]
    return [
        (few, f"by {words.count(number, 'month')}, to {asked.due_on + timedelta(days=few):%-d %B %Y}")
        for number, few in ((number, min(many, MAX_EXTENSION_DAYS)) for number, many in days)
    ]


def _failed_attempts(events: Iterable[Event]) -> list[Event]:
    """Return how the attempts ended that did not lead to a model."""
    return [
        event
        for event in events
        if event.from_status in (Status.UNLEARNING, Status.RECOVERING)
        and event.to_status in (Status.SCHEDULED, Status.FAILED)
    ]


def _what(event: Event) -> str:
    status = Status.RECEIVED if event.kind == SUBMITTED else event.to_status
    if status is None:
        return event.kind
    moved = f"{event.from_status} → {status}" if event.from_status else str(status)
    return f"{moved}: {MEANINGS[status]}"


def _why(event: Event) -> str:
    said = (event.detail.get("reason"), event.detail.get("text"), event.text)
    return " ".join(str(text) for text in said if text)


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
