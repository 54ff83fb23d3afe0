"""The pages that show: requests, one request with its report and certificate, federation, refusals, access."""

from collections import Counter
from collections.abc import Iterable, Mapping

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from server.api.access import ALLOWED, Role, may_cancel
from server.certificate.document import Certificate, decode
from server.certificate.file_checks import Check, Outcome, check_report, check_signature
from server.certificate.ledger_check import LedgerView, check_ledger
from server.console import story
from server.console.console import Console
from server.console.federation import Federation, figure, privacy_account
from server.console.list_query import SORTS, ListQuery, page_of
from server.ledger import Event
from server.ledger.records import no_such_request
from unlearning.errors import CertificateError, FlowerUnlearningError, IllegalMove, RequestNotFound
from unlearning.gdpr import today
from unlearning.requests import LEGAL_MOVES, DeletionRequest, Status

MAX_POINTS = 300
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"
"""Of the report's own page: it has its style inside, runs no script, and is kept apart from the console."""


def requests_page(console: Console, request: Request) -> Response:
    """Show the list of requests."""
    asked = ListQuery.of(request.query_params)
    known = console.mirror.now()
    return console.render(
        request,
        "requests.html",
        live=True,
        stamp=known.stamp,
        asked=asked,
        listed=page_of(known.requests.values(), asked, today()),
        sorts=SORTS,
        num_known=len(known.requests),
    )


def request_page(
    console: Console,
    request: Request,
    errors: Mapping[str, str] | None = None,
    status: int = 200,
    typed: Mapping[str, str] | None = None,
) -> Response:
    """Show one request: where it stands, what happened, what may be done, and how its figures changed."""
    stamp = console.stamp("request")
    asked = find(console, request.path_params["id"])
    events, _ = console.service.events(asked.id)
    federation = console.federation.now(not_older_than_s=1.0)
    tiles, verdict = [], ""
    if asked.status is Status.COMPLETED:
        try:
            report_ = console.report(asked.id)
            tiles, verdict = story.tiles(report_), story.verdict(report_)
        except IllegalMove as exc:
            verdict = str(exc)
    return console.render(
        request,
        "request.html",
        status=status,
        live=status == 200,
        stamp=stamp,
        asked=asked,
        timeline=story.timeline(events),
        attempts=story.attempts(events),
        rounds=federation.serving(asked.id),
        tiles=tiles,
        verdict=verdict,
        may=_possible(console, asked, events),
        errors=errors or {},
        typed={
            "ground": asked.ground or "",
            "reference": asked.reference,
            "note": asked.note,
            **(typed or {}),
        },
    )


def report(console: Console, request: Request) -> Response:
    """Hand out the report's own page."""
    asked = find(console, request.path_params["id"])
    return Response(
        console.report(asked.id).html,
        media_type="text/html; charset=utf-8",
        headers={"content-security-policy": REPORT_POLICY},
    )


def report_json(console: Console, request: Request) -> Response:
    """Hand out the report for machines."""
    asked = find(console, request.path_params["id"])
    return download(console.report(asked.id).json, f"report-{asked.id}.json", "application/json")


def certificate_json(console: Console, request: Request) -> Response:
    """Hand out the certificate, byte for byte."""
    asked = find(console, request.path_params["id"])
    content = console.report(asked.id).certificate
    if not content:
        raise RequestNotFound(
            f"Request {asked.id} has no certificate: it was completed before there were any."
        )
    return download(content, f"certificate-{asked.id}.json", "application/json")


def certificate_page(console: Console, request: Request) -> Response:
    """Show a certificate and what checking it gives."""
    asked = find(console, request.path_params["id"])
    kept = console.report(asked.id)
    certificate, checks = None, [Check("certificate", Outcome.SKIPPED, "There is none.")]
    if kept.certificate:
        try:
            file = decode(kept.certificate)
            certificate = file.certificate
            checks = [
                check_signature(file, console.public_key)
                if console.public_key is not None
                else Check(
                    "signature", Outcome.SKIPPED, "Start the console with --public-key FILE to check it."
                ),
                check_report(certificate, kept.json),
                _check_ledger(console, certificate, kept.certificate),
            ]
        except CertificateError as exc:
            checks = [Check("certificate", Outcome.REFUSED, str(exc))]
    return console.render(request, "certificate.html", asked=asked, certificate=certificate, checks=checks)


def federation_page(console: Console, request: Request) -> Response:
    """Show who is in the federation and how its rounds go."""
    stamp = console.stamp("federation")
    # Imported here because drawing needs Matplotlib, half a second of a processor.
    from server.report.plots import rounds_plot

    known = console.federation.now(not_older_than_s=1.0)
    newest = known.rounds[-1] if known.rounds else None
    return console.render(
        request,
        "federation.html",
        live=True,
        stamp=stamp,
        federation=known,
        newest=newest,
        recent=tuple(reversed(known.rounds[-20:])),
        plots=[
            # our own plots; any text in them was escaped by the plotting library
            (label, Markup(rounds_plot(_points(known, name), _deletions(known), name, label)))
            for name, label in (("test_score", "Score on test data"), ("loss", "Training loss"))
        ],
        account=privacy_account(console.mirror.now(not_older_than_s=1.0).requests.values()),
    )


def refusals_page(console: Console, request: Request) -> Response:
    """Show the calls that the service refused, the newest first."""
    caller = request.query_params.get("caller", "")[:200]
    found = console.service.refusals(limit=200, caller=caller)
    return console.render(request, "refusals.html", refusals=found[::-1], asked_caller=caller)


def access_page(console: Console, request: Request) -> Response:
    """Show who the caller is, what each role may do, and who has called."""
    filed = Counter(
        (item.submitted_by, item.submitted_role or "–")
        for item in console.mirror.now(not_older_than_s=1.0).requests.values()
    )
    refused: Counter[tuple[str, str]] = Counter()
    if console.may("ListRefusals"):
        for item in console.service.refusals():
            refused[item.caller or "–", item.role or "–"] += int(item.detail.get("times", 1))
    return console.render(
        request,
        "access.html",
        allowed=ALLOWED,
        roles=list(Role),
        people=[(who, filed[who], refused[who]) for who in sorted({*filed, *refused})],
    )


def find(console: Console, request_id: str) -> DeletionRequest:
    """Return a request of the list.

    Raises:
        RequestNotFound: the caller may see none with this id.
    """
    known = console.mirror.now(not_older_than_s=0.2)
    found = known.requests.get(request_id)
    if found is None:
        if known.problem:
            return console.service.get(request_id)  # says what the problem is
        raise no_such_request(request_id[:40])
    return found


def download(content: bytes, name: str, kind: str) -> Response:
    """Return a file to be saved."""
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers=headers)


def _points(known: Federation, name: str) -> tuple[tuple[int, str, float], ...]:
    """Return a figure of the newest rounds that have it, for a plot."""
    values = ((record, figure(record, name)) for record in known.rounds[-MAX_POINTS:])
    return tuple((record.round, record.kind, value) for record, value in values if value is not None)


def _deletions(known: Federation) -> tuple[tuple[int, str], ...]:
    return tuple(
        (record.round, record.request_ids[0] if record.request_ids else "deletion")
        for record in known.rounds[-MAX_POINTS:]
        if record.kind == "unlearning"
    )


def _check_ledger(console: Console, certificate: Certificate, content: bytes) -> Check:
    if not console.may("VerifyLedger"):
        return Check("ledger", Outcome.SKIPPED, "Operators and officers may ask the service for it.")
    try:
        return check_ledger(certificate, content, LedgerView.of_service(console.service))
    except FlowerUnlearningError as exc:
        return Check("ledger", Outcome.SKIPPED, str(exc))


def _possible(console: Console, asked: DeletionRequest, events: Iterable[Event]) -> frozenset[str]:
    """Return which buttons the page has: what the state and the caller's role allow."""
    moves = LEGAL_MOVES[asked.status]
    waits = asked.status in (Status.RECEIVED, Status.SCHEDULED, Status.FAILED)
    possible = {
        "cancel": Status.CANCELLED in moves
        and console.may("CancelRequest")
        and may_cancel(console.caller, asked),
        "retry": asked.status is Status.FAILED and asked.retryable and console.may("RetryRequest"),
        "extend": not asked.is_answered
        and not asked.extended_days
        and not asked.is_overdue(today())
        and console.may("ExtendRequest"),
        "hold": waits and not asked.is_held and console.may("HoldRequest"),
        "release": asked.is_held and console.may("ReleaseRequest"),
        "refuse": Status.REFUSED in moves and console.may("RefuseRequest"),
        "amend": asked.status is not Status.VERIFYING and console.may("AmendRequest"),
        "redact": story.has_texts(events) and console.may("RedactRequest"),
    }
    return frozenset(name for name, is_possible in possible.items() if is_possible)
