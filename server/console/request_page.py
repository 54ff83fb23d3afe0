"""One request's page: its state and history, what may be done about it, and how the model's figures changed."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta

from markupsafe import Markup
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from server.console.actions import ACTIONS, CHOSEN, CONFIRMED, Situation, call_of, do
from server.console.federation_page import describe_round, figure
from server.console.forms import texts_of
from server.console.rendering import Console
from server.console.telling import tell
from server.ledger import Event
from server.ledger.records import RECHECK, SUBMITTED
from server.report import words
from server.report.rechecks import Recheck, section
from server.requests.plan_data import PlannedMethod
from server.service.calls import REPORT_PRUNED
from server.service.narrator import GOING_ON, MEANINGS
from server.service.statuses import AccessDenied
from unlearning.advice import advice_for
from unlearning.errors import IllegalMove, InvalidRequest, RequestError, RequestNotFound
from unlearning.gdpr import MAX_EXTENSION_DAYS, Amendment, one_month_after
from unlearning.requests import DeletionRequest, Status


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
    actions = {
        name: action
        for name, action in ACTIONS.items()
        if name in failed or (console.may(call_of(name)) and action.is_possible(now))
    }
    return console.render(
        request,
        "request.html",
        status=status,
        live=status == 200,
        known=known,
        asked=asked,
        meaning=GOING_ON.get(asked.status, MEANINGS[asked.status]),
        rechecks=_rechecks(events),
        timeline=[(event.at, _what(event), event.actor, _why(event)) for event in events],
        attempts=_failed_attempts(events),
        rounds=[record for record in known.rounds if asked.id in record.request_ids],
        describe_round=describe_round,
        figure=figure,
        headline=headline,
        problem=problem,
        advice=advice_for(asked),
        reasons=reasons,
        actions=actions,
        methods=_other_methods(console, asked) if "retry" in actions else (),
        extensions=_extensions(asked),
        tell=tell(asked),
        errors=failed,
        typed={item.name: getattr(asked, item.name) or "" for item in fields(Amendment)} | dict(typed or {}),
    )


def _rechecks(events: Sequence[Event]) -> Markup | str:
    """Return the section of a request's rechecks; empty where there was none."""
    found = [
        Recheck.of(event.at, event.detail[RECHECK], reopened=event.to_status is Status.REOPENED)
        for event in events
        if RECHECK in event.detail
    ]
    return section(found) if found else ""


def _other_methods(console: Console, asked: DeletionRequest) -> list[PlannedMethod]:
    """Return the methods that can serve a failed request, the recommended one first; none while no plan can be made."""
    try:
        planned = console.service.plan(asked.target).methods
    except RequestError:
        return []
    return [item for item in planned if not item.refusal]


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


def _outcome(console: Console, asked: DeletionRequest) -> tuple[list[tuple[str, str, str]], str, list[str]]:
    """Return the figures that the report puts first, why there is none, and why it says what it does."""
    if asked.status not in (Status.COMPLETED, Status.REOPENED):
        return [], "", []
    try:
        text = console.report(asked.id).json
    except IllegalMove as exc:
        return [], str(exc), []
    if not text:
        return [], REPORT_PRUNED, []
    report = json.loads(text)
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
