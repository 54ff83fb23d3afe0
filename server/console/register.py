"""The register: all requests of a period, to look at and to hand to an auditor as CSV or JSON-LD.

The JSON-LD uses the terms of the W3C community group's Data Privacy Vocabulary (DPV 2): one
dpv:RightExerciseRecord with an activity a request, each an exercise of the right to erasure (eu-gdpr:A17). Both
exports carry the ledger's newest event and its hash, so that the ledger can be compared with them later.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.console.console import Console
from server.console.list_query import ListPage, page_number
from server.console.pages import download
from server.service.calls import LedgerCheck
from unlearning.errors import InvalidRequest
from unlearning.requests import DeletionRequest, Status

CONTEXT: Mapping[str, Any] = {
    "dpv": "https://w3id.org/dpv#",
    "eu-gdpr": "https://w3id.org/dpv/legal/eu/gdpr#",
    "dct": "http://purl.org/dc/terms/",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
    "flun": "urn:flower-unlearning:",
    "dct:created": {"@type": "xsd:dateTime"},
    "dct:modified": {"@type": "xsd:dateTime"},
    "dct:issued": {"@type": "xsd:dateTime"},
    "dct:dateSubmitted": {"@type": "xsd:date"},
    "flun:dueOn": {"@type": "xsd:date"},
}
DPV_STATUS: Mapping[Status, str] = {
    Status.RECEIVED: "dpv:RequestInitiated",
    Status.SCHEDULED: "dpv:RequestAccepted",
    Status.UNLEARNING: "dpv:RequestAccepted",
    Status.RECOVERING: "dpv:RequestAccepted",
    Status.VERIFYING: "dpv:RequestAccepted",
    Status.COMPLETED: "dpv:RequestFulfilled",
    Status.FAILED: "dpv:RequestActionDelayed",
    Status.CANCELLED: "dpv:RequestUnfulfilled",
    Status.REFUSED: "dpv:RequestRejected",
}
COLUMNS: Mapping[str, Callable[[DeletionRequest], object]] = {
    "request": lambda item: item.id,
    "state": lambda item: str(item.status),
    "subject": lambda item: item.target.describe(),
    "granularity": lambda item: str(item.target.granularity),
    "client": lambda item: item.target.client_id or "",
    "received_on": lambda item: item.received_on,
    "due_on": lambda item: item.due_on,
    "extended_days": lambda item: item.extended_days,
    "extension_reason": lambda item: item.extension_reason,
    "ground": lambda item: item.ground.describe() if item.ground else "",
    "reference": lambda item: item.reference,
    "note": lambda item: item.note,
    "held": lambda item: "yes" if item.is_held else "no",
    "hold_reason": lambda item: item.hold_reason,
    "refusal_reason": lambda item: item.refusal_reason,
    "filed_at": lambda item: item.created_at.isoformat(timespec="seconds"),
    "changed_at": lambda item: item.updated_at.isoformat(timespec="seconds"),
    "filed_by": lambda item: item.submitted_by,
    "filed_in_role": lambda item: item.submitted_role or "",
    "method": lambda item: item.method,
    "attempts": lambda item: item.attempts,
    "reason": lambda item: item.reason,
    "certificate_sha256": lambda item: item.result.get("certificate_sha256", ""),
}
"""What the CSV says of each request; the ledger's newest event follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The days, both included, on which a request was received; None: without bound."""

    first: date | None = None
    last: date | None = None
    problems: Mapping[str, str]

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Period":
        """Read an address's query; what is no day is said in `problems`."""
        days: dict[str, date | None] = {"first": None, "last": None}
        problems: dict[str, str] = {}
        for name in days:
            text = query.get(name, "")
            try:
                days[name] = date.fromisoformat(text) if text else None
            except ValueError:
                problems[name] = f"{text[:40]!r} is no day; give it as {datetime.now(UTC):%Y-%m-%d}."
        first, last = days["first"], days["last"]
        if first is not None and last is not None and first > last:
            problems["last"] = "The last day is before the first."
        return cls(first=first, last=last, problems=problems)

    def select(self, requests: Iterable[DeletionRequest]) -> list[DeletionRequest]:
        """Return the requests of the period, in order of arrival."""
        found = []
        for item in requests:
            day = item.received_on
            if (self.first is None or day >= self.first) and (self.last is None or day <= self.last):
                found.append(item)
        return sorted(found, key=lambda item: item.id)

    @property
    def query(self) -> str:
        """The period as an address has it."""
        parts = [f"{name}={day}" for name, day in (("first", self.first), ("last", self.last)) if day]
        return "&".join(parts)


def register_page(console: Console, request: Request) -> Response:
    """Show the requests of a period, and where to export them."""
    period = Period.of(request.query_params)
    found = [] if period.problems else period.select(console.mirror.now().requests.values())
    counts = {str(status): sum(item.status is status for item in found) for status in Status}
    return console.render(
        request,
        "register.html",
        status=422 if period.problems else 200,
        period=period,
        typed={name: request.query_params.get(name, "") for name in ("first", "last")},
        listed=ListPage.of(found, page_number(request.query_params), counts),
    )


def register_csv(console: Console, request: Request) -> Response:
    """Hand out the period as CSV."""
    period, found, head = _export(console, request)
    return download(as_csv(found, head), _name(period, "csv"), "text/csv; charset=utf-8")


def register_jsonld(console: Console, request: Request) -> Response:
    """Hand out the period as JSON-LD."""
    period, found, head = _export(console, request)
    record = as_jsonld(found, head, period, now=datetime.now(UTC))
    content = json.dumps(record, indent=2, ensure_ascii=False).encode()
    return download(content, _name(period, "jsonld"), "application/ld+json")


def as_csv(requests: Iterable[DeletionRequest], head: LedgerCheck | None) -> bytes:
    """Return the requests as CSV (RFC 4180, UTF-8 with a byte order mark, for spreadsheets).

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*COLUMNS, "ledger_event", "ledger_hash"])
    newest = (head.head_sequence, head.head_hash) if head else ("", "")
    for item in requests:
        writer.writerow([*(_harmless(value_of(item)) for value_of in COLUMNS.values()), *newest])
    return b"\xef\xbb\xbf" + text.getvalue().encode()


def as_jsonld(
    requests: Iterable[DeletionRequest], head: LedgerCheck | None, period: Period, *, now: datetime
) -> dict[str, Any]:
    """Return the requests as one record in JSON-LD."""
    return {
        "@context": CONTEXT,
        "@type": "dpv:RightExerciseRecord",
        "dct:title": "Register of erasure requests",
        "dct:issued": now.isoformat(timespec="seconds"),
        "flun:first": None if period.first is None else str(period.first),
        "flun:last": None if period.last is None else str(period.last),
        "flun:ledger": None
        if head is None
        else {
            "flun:event": head.head_sequence,
            "flun:hash": head.head_hash,
            "flun:problem": head.problem,
        },
        "dct:hasPart": [_activity(item) for item in requests],
    }


def _export(console: Console, request: Request) -> tuple[Period, list[DeletionRequest], LedgerCheck | None]:
    period = Period.of(request.query_params)
    if period.problems:
        raise InvalidRequest(" ".join(period.problems.values()))
    # The head first: what is exported is then at least as new as the event that is named.
    head = console.service.verify_ledger() if console.may("VerifyLedger") else None
    known = console.mirror.now()
    if known.problem:
        console.service.list_requests()  # an export of what was known last would look like one of today: raise
    return period, period.select(known.requests.values()), head


def _activity(item: DeletionRequest) -> dict[str, Any]:
    found: dict[str, Any] = {
        "@type": "dpv:RightExerciseActivity",
        "@id": f"flun:{item.id}",
        "dct:identifier": item.id,
        "dpv:hasRight": {"@id": "eu-gdpr:A17"},
        "dpv:hasStatus": {"@id": DPV_STATUS[item.status]},
        "dct:dateSubmitted": str(item.received_on),
        "flun:dueOn": str(item.due_on),
        "flun:extendedDays": item.extended_days,
        "flun:isHeld": item.is_held,
        "dct:created": item.created_at.isoformat(timespec="seconds"),
        "dct:modified": item.updated_at.isoformat(timespec="seconds"),
        "dct:description": f"Forget {item.target.describe()}",
        "dct:creator": item.submitted_by,
        "flun:state": str(item.status),
        "flun:method": item.method,
    }
    texts = {
        "flun:reason": item.reason,
        "flun:ground": item.ground.describe() if item.ground else "",
        "flun:reference": item.reference,
        "flun:note": item.note,
        "flun:extensionReason": item.extension_reason,
        "flun:holdReason": item.hold_reason,
    }
    found |= {name: text for name, text in texts.items() if text}
    if item.status is Status.REFUSED:
        found["dpv:hasNotice"] = {"@type": "dpv:RightNonFulfilmentNotice", "flun:reason": item.refusal_reason}
    if item.status is Status.COMPLETED:
        found["dpv:hasNotice"] = {
            "@type": "dpv:RightFulfilmentNotice",
            "flun:certificateSha256": item.result.get("certificate_sha256", ""),
        }
    return found


def _harmless(value: object) -> object:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


def _name(period: Period, ending: str) -> str:
    return f"register-{period.first or 'begin'}-{period.last or 'today'}.{ending}"
