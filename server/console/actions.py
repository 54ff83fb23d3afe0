"""What a form on a request's page does: it is asked of the service, which decides, and the page says the answer."""

from collections.abc import Callable, Mapping

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from server.api.errors import AccessDenied
from server.console import pages
from server.console.console import Console
from server.console.forms import text_of, texts_of
from unlearning.errors import InvalidRequest, RequestError, RequestNotFound
from unlearning.gdpr import MAX_EXTENSION_DAYS, Amendment


def act(console: Console, request: Request, form: FormData) -> Response:
    """Do what a button says, and show the request as it then stands; a refusal stands beside the button."""
    name, request_id = request.path_params["action"], request.path_params["id"]
    service, by, reason = console.service, console.caller.name, text_of(form, "reason")
    acts: Mapping[str, Callable[[], object]] = {
        "cancel": lambda: service.cancel(request_id, by=by),
        "retry": lambda: service.retry(request_id, by=by, accept_score_loss=_points(form)),
        "extend": lambda: service.extend(request_id, days=_days(form), reason=reason, by=by),
        "hold": lambda: service.hold(request_id, reason=reason, by=by),
        "release": lambda: service.release(request_id, reason=reason, by=by),
        "refuse": lambda: service.refuse(request_id, reason=reason, by=by),
        "amend": lambda: service.amend(request_id, _amendment(form), by=by),
        "redact": lambda: service.redact(request_id, by=by),
    }
    if name not in acts:
        raise InvalidRequest(f"A request's page has no action {name[:40]!r}.")
    try:
        acts[name]()
    except RequestNotFound:
        raise
    except RequestError as exc:
        status = 403 if isinstance(exc, AccessDenied) else 409
        return pages.request_page(console, request, {name: str(exc)}, status, texts_of(form))
    return RedirectResponse(f"/requests/{request_id}", status_code=303)


def _points(form: FormData) -> float:
    points = text_of(form, "accept_score_loss") or "0"
    try:
        return float(points)
    except ValueError:
        raise InvalidRequest(f"The accepted loss is a number of points, got {points[:40]!r}.") from None


def _days(form: FormData) -> int:
    days = text_of(form, "days")
    if not (days.isascii() and days.isdigit() and len(days) < 9):
        raise InvalidRequest(
            f"An extension is a number of days from 1 to {MAX_EXTENSION_DAYS}, got {days[:40]!r}."
        )
    return int(days)


def _amendment(form: FormData) -> Amendment:
    return Amendment(
        **{name: text_of(form, name) for name in ("ground", "reference", "note") if name in form}
    )
