"""Pages that show something and change nothing: a request's report and certificate, refusals, access."""

from starlette.requests import Request
from starlette.responses import Response

from server.certificate.document import Certificate, decode, describe_certified
from server.certificate.file_checks import Check, check_report, check_signature
from server.certificate.ledger_check import LedgerView, check_ledger
from server.console.rendering import Console, download
from server.service.calls import CALLS, REPORT_PRUNED, Role
from unlearning.errors import CertificateError, FlowerUnlearningError, RequestNotFound

REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"
"""Of the report's own page: it has its style inside, runs no script, and is kept apart from the console."""


def report(console: Console, request: Request) -> Response:
    """Show the report's own page."""
    return Response(
        _kept(console.report(console.find(request.path_params["id"]).id).html),
        media_type="text/html; charset=utf-8",
        headers={"content-security-policy": REPORT_POLICY},
    )


def report_json(console: Console, request: Request) -> Response:
    """Return the report for machines."""
    asked = console.find(request.path_params["id"])
    return download(_kept(console.report(asked.id).json), f"report-{asked.id}.json", "application/json")


def _kept(content: bytes) -> bytes:
    if not content:
        raise RequestNotFound(REPORT_PRUNED, code="report-pruned")
    return content


def certificate_json(console: Console, request: Request) -> Response:
    """Return the certificate, byte for byte."""
    asked = console.find(request.path_params["id"])
    content = console.report(asked.id).certificate
    if not content:
        raise RequestNotFound(f"Request {asked.id} has no certificate.")
    return download(content, f"certificate-{asked.id}.json", "application/json")


def certificate_page(console: Console, request: Request) -> Response:
    """Show a certificate and the outcome of checking it."""
    asked = console.find(request.path_params["id"])
    kept = console.report(asked.id)
    certificate, checks, result = None, [Check.skip("certificate", "There is none.")], ""
    if kept.certificate:
        try:
            file = decode(kept.certificate)
            certificate = file.certificate
            result = describe_certified(certificate)
            checks = [
                check_signature(file, console.public_key)
                if console.public_key is not None
                else Check.skip("signature", "Start the console with --public-key FILE to check it."),
                check_report(certificate, kept.json) if kept.json else Check.skip("report", REPORT_PRUNED),
                _check_ledger(console, certificate, kept.certificate),
            ]
        except CertificateError as exc:
            checks = [Check.refuse("certificate", str(exc))]
    return console.render(
        request, "certificate.html", asked=asked, certificate=certificate, checks=checks, result=result
    )


def refusals_page(console: Console, request: Request) -> Response:
    """Show the calls that the service refused, the newest first."""
    caller = request.query_params.get("caller", "")[:200]
    found = console.service.refusals(limit=200, caller=caller)
    return console.render(request, "refusals.html", refusals=found[::-1], asked_caller=caller)


def access_page(console: Console, request: Request) -> Response:
    """Show who the caller is, and what each role may do."""
    return console.render(request, "access.html", calls=CALLS, roles=list(Role))


def _check_ledger(console: Console, certificate: Certificate, content: bytes) -> Check:
    if not console.may("VerifyLedger"):
        return Check.skip("ledger", "Operators and officers may ask the service for it.")
    try:
        return check_ledger(certificate, content, LedgerView.of_service(console.service))
    except FlowerUnlearningError as exc:
        return Check.skip("ledger", str(exc))
