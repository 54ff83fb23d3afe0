"""The list of requests and the register: filtered, searched, sorted, and handed to an auditor as CSV or JSON-LD.

The JSON-LD is a record in the terms of the W3C's Data Privacy Vocabulary (`server.certificate.json_ld`). Both exports
carry the ledger's newest event and its hash, so that the ledger can be compared with them later.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from server.certificate.json_ld import activity, record
from server.console.actions import ACTIONS, BULK, CHOSEN, CONFIRMED, call_of, do
from server.console.forms import text_of
from server.console.rendering import Console, download
from server.console.request_page import confirm_page
from server.ledger import Due, Order, RequestFilter, RequestPage
from server.service.calls import LedgerCheck
from server.service.register_csv import KIND, csv_parts, register_row
from unlearning.errors import InvalidRequest, RequestError
from unlearning.gdpr import parse_day
from unlearning.outcomes import is_shown
from unlearning.requests import (
    ANSWERED_STATUSES,
    UNSHOWN_OUTCOMES,
    DeletionRequest,
    Outcome,
    Status,
)

PAGE = 50
NEEDED_AT_ONCE = 20
"""How many requests of one kind the work list shows before it refers to the whole list of them."""
SORTS: Mapping[str, tuple[str, Order]] = {
    "id": ("Request", Order.ARRIVAL),
    "subject": ("Subject", Order.CLIENT),
    "state": ("State", Order.STATUS),
    "received": ("Received", Order.RECEIVED),
    "due": ("Due", Order.DUE),
    "changed": ("Last change", Order.CHANGED),
    "method": ("Method", Order.METHOD),
}
"""What a list can be sorted by: the column's heading, and the ledger's order."""
FILTERS: Mapping[str, Mapping[str, Any]] = {
    "open": {"statuses": tuple(status for status in Status if status not in ANSWERED_STATUSES)},
    "overdue": {"due": Due.OVERDUE},
    "due soon": {"due": Due.SOON},
    "held": {"held": True},
    "not shown": {"outcomes": tuple(sorted(UNSHOWN_OUTCOMES))},
    **{str(outcome): {"outcomes": (outcome,)} for outcome in Outcome},
    **{str(status): {"statuses": (status,)} for status in Status},
}
"""The filter of states and outcomes; open is what is not answered yet."""
NEEDS: Mapping[str, str] = {
    "overdue": "Overdue",
    "due soon": "Due within seven days",
    str(Status.AWAITING): "Awaiting a decision",
    str(Status.REOPENED): "Reopened",
    "failed": "Failed",
    "not shown": "Nothing shown",
}
"""What needs a person, by its filter, in the order of the work list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """What the query of an address asks for; what makes no sense in it counts as not given.

    first, last: the days, both included, on which a request was received; None: without bound.
    problems: what is wrong with these two, by name.
    """

    search: str = ""
    state: str = ""
    sort: str = ""
    is_descending: bool = True
    page: int = 1
    first: date | None = None
    last: date | None = None
    problems: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "ListQuery":
        """Read an address's query."""
        state, sort, page = query.get("state", ""), query.get("sort", ""), query.get("page", "")
        days, problems = _days_of(query)
        return cls(
            search=query.get("q", "").strip()[:200],
            state=state if state in FILTERS else "",
            sort=sort if sort in SORTS else "",
            is_descending=query.get("dir", "down") != "up",
            page=max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 8 else 1,
            problems=problems,
            **days,
        )

    @property
    def is_narrowed(self) -> bool:
        """Whether it asks for some of the requests only, or for an order."""
        return bool(self.search or self.state or self.sort or self.first or self.last)

    def link(self, **changes: Any) -> str:
        """Return the query of the same list with something changed."""
        says = {
            "q": self.search,
            "state": self.state,
            "sort": self.sort,
            "dir": "" if self.is_descending else "up",
            "first": self.first or "",
            "last": self.last or "",
            **changes,
        }
        return "?" + urlencode({name: value for name, value in says.items() if value != ""})

    @property
    def wanted(self) -> RequestFilter:
        """The filter of the whole list, in its order."""
        return RequestFilter(
            **FILTERS.get(self.state, {}),
            text=self.search,
            first=self.first,
            last=self.last,
            order=SORTS[self.sort or "id"][1],
            descending=self.is_descending,
        )


def page_of(console: Console, wanted: RequestFilter, number: int) -> dict[str, Any]:
    """Return a page of a list, the last one for a number beyond, as templates show it."""
    found = console.mirror.page(replace(wanted, offset=(number - 1) * PAGE, limit=PAGE))
    num_pages = max(1, math.ceil(found.total / PAGE))
    if number > num_pages:
        return page_of(console, wanted, num_pages)
    return {"rows": found.requests, "num_found": found.total, "page": number, "num_pages": num_pages}


def requests_page(
    console: Console, request: Request, problems: Mapping[str, str] | None = None, status: int = 200
) -> Response:
    """Show the work list: what needs a person, then all else; or the list that is asked for."""
    asked, known = ListQuery.of(request.query_params), console.mirror.now()
    wanted = asked.wanted if asked.is_narrowed else replace(asked.wanted, urgent=False)
    is_work_list = not asked.is_narrowed and asked.page == 1
    counts = console.mirror.totals({name: _needed(name) for name in NEEDS})
    shown = [name for name, total in counts.items() if total] if is_work_list else []
    return console.render(
        request,
        "requests.html",
        status=status,
        live=not problems,
        known=known,
        asked=asked,
        needed=_once({name: console.mirror.page(_needed(name)) for name in shown}),
        counts=counts,
        listed=page_of(console, wanted, asked.page),
        sorts=SORTS,
        filters=FILTERS,
        needs=NEEDS,
        saved=console.filters.all(),
        bulk=[name for name in BULK if console.may(call_of(name))],
        actions=ACTIONS,
        problems=problems or {},
    )


def save_filter(console: Console, request: Request, form: FormData) -> Response:
    """Save the list that is shown by a name."""
    asked = ListQuery.of(dict(parse_qsl(text_of(form, "query").removeprefix("?"))))
    try:
        console.filters.save(" ".join(text_of(form, "name").split()), asked.link())
    except InvalidRequest as exc:
        return requests_page(console, request, {"": str(exc)}, 422)
    return RedirectResponse(f"/requests{asked.link()}", status_code=303)


def delete_filter(console: Console, _request: Request, form: FormData) -> Response:
    """Delete a saved filter."""
    console.filters.delete(text_of(form, "name"))
    return RedirectResponse("/requests", status_code=303)


def _needed(name: str) -> RequestFilter:
    # all others need a person whenever they are in this state
    urgent = True if name == "not shown" else None
    return RequestFilter(**FILTERS[name], urgent=urgent, order=Order.DUE, limit=NEEDED_AT_ONCE)


def _once(needed: Mapping[str, RequestPage]) -> dict[str, list[DeletionRequest]]:
    """Return what needs a person, each request under the first of its reasons."""
    seen: set[str] = set()
    found: dict[str, list[DeletionRequest]] = {}
    for name, page in needed.items():
        found[name] = [item for item in page.requests if item.id not in seen]
        seen |= {item.id for item in page.requests}
    return {name: items for name, items in found.items() if items}


def register_page(console: Console, request: Request) -> Response:
    """Show the requests of a period, and where to export them."""
    asked, known = _period(request), console.mirror.now()
    return console.render(
        request,
        "register.html",
        status=422 if asked.problems else 200,
        known=known,
        asked=asked,
        typed={name: request.query_params.get(name, "") for name in ("first", "last")},
        listed=page_of(console, asked.wanted, asked.page),
        counts=console.mirror.totals({str(one): replace(asked.wanted, statuses=(one,)) for one in Status}),
        sorts=SORTS,
    )


def register_csv(console: Console, request: Request) -> Response:
    """Export the period as CSV, for spreadsheets."""
    asked, found, head = _export(console, request)
    newest = {
        "ledger_event": head.head_sequence if head else "",
        "ledger_hash": head.head_hash if head else "",
    }
    content = b"".join(csv_parts([found], newest))
    return download(content, _name(asked, "csv"), f"{KIND}; charset=utf-8")


def register_jsonld(console: Console, request: Request) -> Response:
    """Export the period as JSON-LD."""
    asked, found, head = _export(console, request)
    whole = record(
        [_activity(item) for item in found],
        title="Register of erasure requests",
        issued_at=datetime.now(UTC).isoformat(timespec="seconds"),
        first=asked.first and str(asked.first),
        last=asked.last and str(asked.last),
        ledger=head and {"event": head.head_sequence, "hash": head.head_hash, "problem": head.problem},
    )
    content = json.dumps(whole, indent=2, ensure_ascii=False).encode()
    return download(content, _name(asked, "jsonld"), "application/ld+json")


def _activity(item: DeletionRequest) -> dict[str, Any]:
    row = {name: value for name, value in register_row(item).items() if value not in ("", None)}
    notice = None
    if item.status is Status.REFUSED:
        notice = {"@type": "RightNonFulfilmentNotice", "reason": item.refusal_reason}
    if item.status is Status.COMPLETED and item.outcome is not None and is_shown(item.outcome):
        notice = {"@type": "RightFulfilmentNotice", "certificate_sha256": row.pop("certificate_sha256", "")}
    return row | activity(item.status, notice, item.outcome) | {"state": str(item.status)}


def _export(
    console: Console, request: Request
) -> tuple[ListQuery, list[DeletionRequest], LedgerCheck | None]:
    asked = _period(request)
    if asked.problems:
        raise InvalidRequest(" ".join(asked.problems.values()))
    # The head first: what is exported is then at least as new as the event that is named.
    head = console.service.verify_ledger() if console.may("VerifyLedger") else None
    return asked, console.service.list_requests(first=asked.first, last=asked.last), head


def _period(request: Request) -> ListQuery:
    return replace(ListQuery.of(request.query_params), search="", state="")


def _days_of(query: Mapping[str, str]) -> tuple[dict[str, date | None], dict[str, str]]:
    """Return the two days of a period, and what is wrong with them."""
    days: dict[str, date | None] = {}
    problems: dict[str, str] = {}
    for name in ("first", "last"):
        try:
            days[name] = parse_day(name, query.get(name, "").strip())
        except InvalidRequest as exc:
            problems[name] = str(exc)
    first, last = days.get("first"), days.get("last")
    if first is not None and last is not None and last < first:
        problems["last"] = f"The last day, {last}, is before the first, {first}."
    return days, problems


def _name(asked: ListQuery, ending: str) -> str:
    return f"register-{asked.first or 'begin'}-{asked.last or 'today'}.{ending}"


def act_on_several(console: Console, request: Request, form: FormData) -> Response:
    """Ask first, then do it to each; those that are refused are named with the reason, the others are done."""
    name, chosen = request.path_params["action"], [str(item) for item in form.getlist(CHOSEN)]
    if name not in BULK:
        raise InvalidRequest(f"A list has no action {name[:40]!r}.")
    if not chosen:
        return requests_page(console, request, {"": "Choose one request or more first."}, 422)
    if not form.get(CONFIRMED):
        return confirm_page(console, request, name, [console.find(item) for item in chosen], form)
    problems: dict[str, str] = {}
    for request_id in chosen:
        try:
            do(console, name, request_id, form)
        except RequestError as exc:
            problems[request_id] = str(exc)
    if problems:
        return requests_page(console, request, problems, 409)
    return RedirectResponse("/requests", status_code=303)
