"""The pages by which a request is filed: its target, the plan and the details, the summary."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from server.console.filing import REGISTER_FIELDS, Draft, FieldErrors, read_details, read_target
from server.console.forms import texts_of
from server.console.rendering import Console
from server.service.statuses import AccessDenied
from unlearning.errors import (
    ConflictingRequest,
    RequestError,
    UnknownClient,
    UnknownMethod,
    UnsupportedRequest,
)
from unlearning.requests import Granularity

TARGET_FIELDS = ("what", "client", "class_label", "ids")
DETAIL_FIELDS = ("method", "parameters", "hold_reason", *REGISTER_FIELDS)
GRANULARITIES: Mapping[str, str] = {
    Granularity.CLIENT: "A whole client",
    Granularity.SAMPLE: "Some samples of a client",
    Granularity.CLASS: "A class, on every client",
}
_FIELD_OF_KIND = {
    Granularity.CLIENT: "client",
    Granularity.SAMPLE: "samples",
    Granularity.CLASS: "class_label",
}
_FIELD_OF_REFUSAL: Mapping[type[RequestError], str] = {
    UnknownClient: "client",
    ConflictingRequest: "target",
    UnknownMethod: "method",
    UnsupportedRequest: "method",
}


def target_page(
    console: Console,
    request: Request,
    errors: Mapping[str, str] | None = None,
    typed: Mapping[str, str] | None = None,
    status: int = 200,
) -> Response:
    """Ask what is to be forgotten."""
    known = console.mirror.now()
    return console.render(
        request,
        "file_target.html",
        status=status,
        page="file",
        errors=errors or {},
        typed={**dict.fromkeys(TARGET_FIELDS, ""), **(typed or {})},
        kinds={
            str(kind): text
            for kind, text in GRANULARITIES.items()
            if kind != Granularity.CLASS or not console.caller.is_client
        },
        clients=[item for item in known.clients or () if not item.forgotten],
    )


def take_target(console: Console, request: Request, form: FormData) -> Response:
    """Read what is to be forgotten; the service says whether it can be planned, before anything else is asked."""
    typed = texts_of(form)
    try:
        draft = Draft(target=read_target(form, console.caller))
        console.service.plan(draft.target)
    except FieldErrors as exc:
        return target_page(console, request, exc.errors, typed, 422)
    except RequestError as exc:
        found = (name for kind, name in _FIELD_OF_REFUSAL.items() if isinstance(exc, kind))
        errors = {next(found, _FIELD_OF_KIND[draft.target.granularity]): str(exc)}
        return target_page(console, request, errors, typed, _status(exc))
    console.drafts.put(draft)
    return RedirectResponse(f"/file/{draft.id}", status_code=303)


def plan_page(
    console: Console,
    request: Request,
    errors: Mapping[str, str] | None = None,
    typed: Mapping[str, str] | None = None,
    status: int = 200,
) -> Response:
    """Show which methods can, at what price, and ask for the details."""
    draft = console.drafts.get(request.path_params["draft"])
    plan = console.service.plan(draft.target)
    possible = [item for item in plan.methods if not item.refusal]
    return console.render(
        request,
        "file_plan.html",
        status=status,
        page="file",
        draft=draft,
        plan=plan,
        possible=possible,
        refused=[item for item in plan.methods if item.refusal],
        errors=errors or {},
        typed={
            **dict.fromkeys(DETAIL_FIELDS, ""),
            "method": plan.recommended,
            **draft.typed,
            **(typed or {}),
        },
    )


def take_details(console: Console, request: Request, form: FormData) -> Response:
    """Read method and details, and go on to the summary."""
    draft = console.drafts.get(request.path_params["draft"])
    typed = {**dict.fromkeys(DETAIL_FIELDS, ""), **texts_of(form)}
    try:
        console.drafts.put(read_details(draft, typed, datetime.now(UTC)))
    except FieldErrors as exc:
        return plan_page(console, request, exc.errors, typed, 422)
    return RedirectResponse(f"/file/{draft.id}/summary", status_code=303)


def summary_page(
    console: Console, request: Request, errors: Mapping[str, str] | None = None, status: int = 200
) -> Response:
    """Show what would be filed."""
    draft = console.drafts.get(request.path_params["draft"])
    if draft.filed_as:
        return RedirectResponse(f"/requests/{draft.filed_as}", status_code=303)
    return console.render(
        request, "file_summary.html", status=status, page="file", draft=draft, errors=errors or {}
    )


def file_it(console: Console, request: Request, _form: FormData) -> Response:
    """File the request; a second click gives the same one."""
    draft = console.drafts.get(request.path_params["draft"])
    try:
        filed = console.service.submit(
            draft.target,
            method=draft.method,
            parameters=draft.parameters,
            submitted_by=console.caller.name,
            idempotency_key=draft.key,
            particulars=draft.particulars,
            hold_reason=draft.typed["hold_reason"],
        )
    except RequestError as exc:
        return summary_page(console, request, {"form": str(exc)}, _status(exc))
    console.drafts.put(replace(draft, filed_as=filed.id))
    return RedirectResponse(f"/requests/{filed.id}", status_code=303)


def _status(error: RequestError) -> int:
    return 403 if isinstance(error, AccessDenied) else 422
