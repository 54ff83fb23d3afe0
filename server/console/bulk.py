"""Doing the same to several requests of a list at once, after one confirmation."""

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from server.console.actions import BULK, CHOSEN, CONFIRMED, do
from server.console.rendering import Console
from server.console.request_list import requests_page
from server.console.request_page import confirm_page
from unlearning.errors import InvalidRequest, RequestError


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
