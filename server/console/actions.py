"""What a form on a request's page does: it is asked of the service, which decides, and the page says the answer."""

from collections.abc import Callable, Mapping

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from server.api.errors import AccessDenied
from server.console import pages
from server.console.console import Console
from server.console.forms import text_of, texts_of
from unlearning.deadlines import MAX_EXTENSION_DAYS, Amendment
from unlearning.errors import InvalidRequest, RequestError, RequestNotFound

Act = Callable[[Console, str, FormData, str], object]


def _cancel(console: Console, request_id: str, _form: FormData, by: str) -> object:
    return console.service.cancel(request_id, by=by)


def _retry(console: Console, request_id: str, form: FormData, by: str) -> object:
    points = text_of(form, "accept_score_loss") or "0"
    try:
        accepted = float(points)
    except ValueError:
        raise InvalidRequest(f"The accepted loss is a number of points, got {points[:40]!r}.") from None
    return console.service.retry(request_id, by=by, accept_score_loss=accepted)


def _extend(console: Console, request_id: str, form: FormData, by: str) -> object:
    days = text_of(form, "days")
    if not (days.isascii() and days.isdigit() and len(days) < 9):
        raise InvalidRequest(
            f"An extension is a number of days from 1 to {MAX_EXTENSION_DAYS}, got {days[:40]!r}."
        )
    return console.service.extend(request_id, days=int(days), reason=text_of(form, "reason"), by=by)


def _hold(console: Console, request_id: str, form: FormData, by: str) -> object:
    return console.service.hold(request_id, reason=text_of(form, "reason"), by=by)


def _release(console: Console, request_id: str, form: FormData, by: str) -> object:
    return console.service.release(request_id, reason=text_of(form, "reason"), by=by)


def _refuse(console: Console, request_id: str, form: FormData, by: str) -> object:
    return console.service.refuse(request_id, reason=text_of(form, "reason"), by=by)


def _amend(console: Console, request_id: str, form: FormData, by: str) -> object:
    given = {name: text_of(form, name) for name in ("ground", "reference", "note") if name in form}
    return console.service.amend(request_id, Amendment(**given), by=by)


def _redact(console: Console, request_id: str, _form: FormData, by: str) -> object:
    return console.service.redact(request_id, by=by)


ACTS: Mapping[str, Act] = {
    "cancel": _cancel,
    "retry": _retry,
    "extend": _extend,
    "hold": _hold,
    "release": _release,
    "refuse": _refuse,
    "amend": _amend,
    "redact": _redact,
}


async def act(console: Console, request: Request, form: FormData) -> Response:
    """Do what a button says, and show the request as it then stands; a refusal stands beside the button."""
    return await run_in_threadpool(_act, console, request, form)


def _act(console: Console, request: Request, form: FormData) -> Response:
    name, request_id = request.path_params["action"], request.path_params["id"]
    if name not in ACTS:
        raise InvalidRequest(f"A request's page has no action {name[:40]!r}.")
    try:
        ACTS[name](console, request_id, form, console.caller.name)
    except RequestNotFound:
        raise
    except RequestError as exc:
        status = 403 if isinstance(exc, AccessDenied) else 409
        return pages.request_page(console, request, {name: str(exc)}, status, texts_of(form))
    return RedirectResponse(f"/requests/{request_id}", status_code=303)
