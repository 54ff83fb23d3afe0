"""The pages by which a request is filed: its target, the plan and the details, the summary."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from server.console.console import Console
from server.console.filing import (
    GRANULARITIES,
    Draft,
    FieldErrors,
    error_fields,
    read_parameters,
    read_particulars,
    read_target,
)
from server.console.forms import texts_of
from server.service.statuses import AccessDenied
from unlearning.errors import RequestError
from unlearning.gdpr import NOTHING_GIVEN
from unlearning.methods import DEFAULT_METHOD
from unlearning.requests import Granularity

TARGET_FIELDS = ("what", "client", "class_label", "ids")
DETAIL_FIELDS = ("method", "parameters", "received_on", "due_on", "ground", "reference", "note")
_FIELD_OF_KIND = {
    Granularity.CLIENT: "client",
    Granularity.SAMPLE: "samples",
    Granularity.CLASS: "class_label",
}


def target_page(
    console: Console,
    request: Request,
    errors: Mapping[str, str] | None = None,
    typed: Mapping[str, str] | None = None,
    status: int = 200,
) -> Response:
    """Ask what is to be forgotten."""
    federation = console.federation.now()
    clients = [item.client.client_id for item in federation.clients or () if not item.forgotten]
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
            if kind != "class" or not console.caller.is_client
        },
        clients=clients,
    )


def take_target(console: Console, request: Request, form: FormData) -> Response:
    """Read what is to be forgotten; the service says whether it can be planned, before anything else is asked."""
    typed = texts_of(form)
    try:
        draft = Draft(target=read_target(form, console.caller))
        console.service.plan(draft.target_to_plan)
    except FieldErrors as exc:
        return target_page(console, request, exc.errors, typed, 422)
    except RequestError as exc:
        errors = error_fields(exc, otherwise=_FIELD_OF_KIND[draft.target.granularity])
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
    plan = console.service.plan(draft.target_to_plan)
    possible = [item for item in plan.methods if not item.refusal]
    chosen = DEFAULT_METHOD if any(item.method == DEFAULT_METHOD for item in possible) else ""
    chosen = chosen or (possible[0].method if possible else "")
    shown = {**dict.fromkeys(DETAIL_FIELDS, ""), "method": chosen, **draft.typed, **(typed or {})}
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
        typed=shown,
    )


def take_details(console: Console, request: Request, form: FormData) -> Response:
    """Read method and details, and go on to the summary."""
    draft = console.drafts.get(request.path_params["draft"])
    typed = {**dict.fromkeys(DETAIL_FIELDS, ""), **texts_of(form)}
    errors: dict[str, str] = {}
    parameters, particulars = {}, NOTHING_GIVEN
    if not typed["method"]:
        errors["method"] = "Choose a method."
    try:
        parameters = read_parameters(typed["parameters"])
    except FieldErrors as exc:
        errors |= exc.errors
    try:
        particulars = read_particulars(typed, datetime.now(UTC))
    except FieldErrors as exc:
        errors |= exc.errors
    if errors:
        return plan_page(console, request, errors, typed, 422)
    console.drafts.put(
        replace(draft, method=typed["method"], parameters=parameters, particulars=particulars, typed=typed)
    )
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
        )
    except RequestError as exc:
        errors = {"form": str(exc)}
        return summary_page(console, request, errors, _status(exc))
    console.drafts.put(replace(draft, filed_as=filed.id))
    return RedirectResponse(f"/requests/{filed.id}", status_code=303)


def _status(error: RequestError) -> int:
    return 403 if isinstance(error, AccessDenied) else 422
