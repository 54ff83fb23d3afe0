"""The list of requests and the register: filtered, searched, sorted, and handed to an auditor as CSV or JSON-LD.

The JSON-LD is a record in the terms of the W3C's Data Privacy Vocabulary (`server.certificate.json_ld`). Both exports
carry the ledger's newest event and its hash, so that the ledger can be compared with them later.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from server.certificate.json_ld import activity, record
from server.console.rendering import Console, download
from server.service.calls import LedgerCheck
from unlearning.errors import InvalidRequest
from unlearning.gdpr import SOON, parse_day, today
from unlearning.outcomes import is_shown
from unlearning.requests import DeletionRequest, Status, Target, facts_of

PAGE = 50
SORTS: Mapping[str, tuple[str, Callable[[DeletionRequest], Any]]] = {
    "id": ("Request", lambda item: item.id),
    "subject": ("Subject", lambda item: item.target.describe()),
    "state": ("State", lambda item: list(Status).index(item.status)),
    "received": ("Received", lambda item: (item.received_on, item.id)),
    "due": ("Due", lambda item: (item.is_answered, item.due_on, item.id)),
    "method": ("Method", lambda item: item.method),
}
"""What a list can be sorted by: the column's heading, and its key."""


def _is_in(status: Status, request: DeletionRequest) -> bool:
    return request.status is status


STATES: Mapping[str, Callable[[DeletionRequest], bool]] = {
    "open": lambda item: not item.is_answered,
    "overdue": lambda item: item.is_overdue(today()),
    "due soon": lambda item: not item.is_answered and today() <= item.due_on <= today() + SOON,
    "held": lambda item: item.is_held and not item.is_answered,
    **{str(status): partial(_is_in, status) for status in Status},
}
"""The filter of states; open is what is not answered yet."""
COLUMNS = (
    *(
        item.name
        for item in fields(DeletionRequest)
        if item.name not in ("idempotency_key", "parameters", "result")
    ),
    *(item.name for item in fields(Target) if item.name != "sample_ids"),
    "certificate_sha256",
)
"""What the register says of each request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """What the query of an address asks for; what makes no sense in it counts as not given.

    first, last: the days, both included, on which a request was received; None: without bound.
    problems: what is wrong with these two, by name.
    """

    search: str = ""
    state: str = ""
    sort: str = "id"
    is_descending: bool = True
    page: int = 1
    first: date | None = None
    last: date | None = None
    problems: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "ListQuery":
        """Read an address's query."""
        state, sort, page = query.get("state", ""), query.get("sort", "id"), query.get("page", "")
        days, problems = _days_of(query)
        return cls(
            search=query.get("q", "").strip()[:200],
            state=state if state in STATES else "",
            sort=sort if sort in SORTS else "id",
            is_descending=query.get("dir", "down") != "up",
            page=max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 8 else 1,
            problems=problems,
            **days,
        )

    def link(self, **changes: Any) -> str:
        """Return the query of the same list with something changed."""
        says = {
            "q": self.search,
            "state": self.state,
            "sort": self.sort,
            "dir": "down" if self.is_descending else "up",
            "first": self.first or "",
            "last": self.last or "",
            "page": 1,
            **changes,
        }
        return "?" + urlencode({name: value for name, value in says.items() if value != ""})

    def select(self, requests: Iterable[DeletionRequest]) -> list[DeletionRequest]:
        """Return the requests that are asked for, in order."""
        first, last, words = self.first or date.min, self.last or date.max, self.search.casefold().split()
        found = [
            item
            for item in requests
            if (not self.state or STATES[self.state](item))
            and first <= item.received_on <= last
            and all(word in _text(item) for word in words)
        ]
        return sorted(found, key=SORTS[self.sort][1], reverse=self.is_descending)


def page_of(found: Sequence[DeletionRequest], number: int) -> dict[str, Any]:
    """Return a page of what was found, the last one for a number beyond, as templates show it."""
    num_pages = max(1, math.ceil(len(found) / PAGE))
    page = min(number, num_pages)
    rows = found[(page - 1) * PAGE : page * PAGE]
    return {"rows": rows, "num_found": len(found), "page": page, "num_pages": num_pages}


def requests_page(console: Console, request: Request) -> Response:
    """Show the list of requests."""
    asked, known = ListQuery.of(request.query_params), console.mirror.now()
    everything = known.requests.values()
    return console.render(
        request,
        "requests.html",
        live=True,
        known=known,
        asked=asked,
        listed=page_of(asked.select(everything), asked.page),
        counts={word: sum(map(is_one, everything)) for word, is_one in STATES.items()},
        sorts=SORTS,
    )


def register_page(console: Console, request: Request) -> Response:
    """Show the requests of a period, and where to export them."""
    asked = _period(request)
    found = [] if asked.problems else asked.select(console.mirror.now().requests.values())
    return console.render(
        request,
        "register.html",
        status=422 if asked.problems else 200,
        asked=asked,
        typed={name: request.query_params.get(name, "") for name in ("first", "last")},
        listed=page_of(found, asked.page),
        counts={status: sum(item.status is status for item in found) for status in Status},
    )


def register_csv(console: Console, request: Request) -> Response:
    """Export the period as CSV (RFC 4180, UTF-8 with a byte order mark, for spreadsheets).

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    asked, found, head = _export(console, request)
    newest = {"ledger_event": head.head_sequence, "ledger_hash": head.head_hash} if head else {}
    text = io.StringIO()
    writer = csv.DictWriter(text, (*COLUMNS, "ledger_event", "ledger_hash"))
    writer.writeheader()
    for item in found:
        writer.writerow({name: _harmless(value) for name, value in (register_row(item) | newest).items()})
    content = b"\xef\xbb\xbf" + text.getvalue().encode()
    return download(content, _name(asked, "csv"), "text/csv; charset=utf-8")


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


def register_row(item: DeletionRequest) -> dict[str, Any]:
    """Return what the register says of a request, by the names of its fields."""
    facts = facts_of(item) | {
        "ground": item.ground.describe() if item.ground else "",
        "certificate_sha256": item.result.get("certificate_sha256", ""),
    }
    return {name: facts[name] for name in COLUMNS}


def _activity(item: DeletionRequest) -> dict[str, Any]:
    row = {name: value for name, value in register_row(item).items() if value not in ("", None)}
    notice = None
    if item.status is Status.REFUSED:
        notice = {"@type": "RightNonFulfilmentNotice", "reason": item.refusal_reason}
    if item.outcome is not None and is_shown(item.outcome):
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
    known = console.mirror.now()
    if known.problem:
        console.service.list_requests()  # raises: what was known last would look like an export of today
    return asked, asked.select(known.requests.values()), head


def _period(request: Request) -> ListQuery:
    return replace(ListQuery.of(request.query_params), sort="id", is_descending=False, search="", state="")


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


def _text(request: DeletionRequest) -> str:
    """Return what a search looks into."""
    parts = (
        request.id,
        request.target.describe(),
        request.method,
        request.submitted_by,
        request.reason,
        request.reference,
    )
    return "\n".join(parts).casefold()


def _harmless(value: object) -> object:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


def _name(asked: ListQuery, ending: str) -> str:
    return f"register-{asked.first or 'begin'}-{asked.last or 'today'}.{ending}"
