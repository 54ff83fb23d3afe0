"""What a form on a request's page does: the service is called with its values, and the page shows the answer."""

from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from server.console import pages
from server.console.console import Console
from server.console.forms import text_of, texts_of
from server.service.calls import VERBS
from server.service.statuses import AccessDenied
from unlearning.errors import InvalidRequest, RequestError, RequestNotFound
from unlearning.gdpr import MAX_EXTENSION_DAYS


def act(console: Console, request: Request, form: FormData) -> Response:
    """Do what a button says, and show the request in its new state; a refusal is shown beside the button."""
    name, request_id = request.path_params["action"], request.path_params["id"]
    verb = VERBS.get(name)
    if verb is None:
        raise InvalidRequest(f"A request's page has no action {name[:40]!r}.")
    try:
        values = {item: _READ.get(item, text_of)(form, item) for item in verb.values if item in form}
        console.service.change(name, request_id, by=console.caller.name, **values)
    except RequestNotFound:
        raise
    except RequestError as exc:
        status = 403 if isinstance(exc, AccessDenied) else 409
        return pages.request_page(console, request, {name: str(exc)}, status, texts_of(form))
    return RedirectResponse(f"/requests/{request_id}", status_code=303)


def _points(form: FormData, name: str) -> float:
    points = text_of(form, name) or "0"
    try:
        return float(points)
    except ValueError:
        raise InvalidRequest(f"The accepted loss is a number of points, got {points[:40]!r}.") from None


def _days(form: FormData, name: str) -> int:
    days = text_of(form, name)
    if not (days.isascii() and days.isdigit() and len(days) < 9):
        raise InvalidRequest(
            f"An extension is a number of days from 1 to {MAX_EXTENSION_DAYS}, got {days[:40]!r}."
        )
    return int(days)


_READ: Mapping[str, Callable[[FormData, str], Any]] = {"accept_score_loss": _points, "days": _days}
"""How a value is read that is no text."""
