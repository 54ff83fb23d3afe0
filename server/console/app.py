"""The console's routes: each page is a function of the console and the request."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from server.console import actions, filing_pages, pages, register
from server.console.auth import ENTRANCE, AuthMiddleware, enter, has_token
from server.console.console import Console, stylesheet
from server.console.filing import TOO_LONG
from server.console.forms import BodyTooLong, read_form
from server.service.statuses import AccessDenied, NotAuthenticated
from unlearning.errors import FlowerUnlearningError, InvalidRequest, RequestError, RequestNotFound

POLL_S = 1.0
STREAM_S = 60.0
"""How long one stream of changes lasts; the browser opens the next by itself."""

Page = Callable[[Console, Request], Response]
Action = Callable[[Console, Request, FormData], Response]
Endpoint = Callable[[Request], Awaitable[Response]]

PAGES: tuple[tuple[str, Page], ...] = (
    ("/requests", pages.requests_page),
    ("/requests/{id}", pages.request_page),
    ("/requests/{id}/report", pages.report),
    ("/requests/{id}/report.json", pages.report_json),
    ("/requests/{id}/certificate", pages.certificate_page),
    ("/requests/{id}/certificate.json", pages.certificate_json),
    ("/file", filing_pages.target_page),
    ("/file/{draft}", filing_pages.plan_page),
    ("/file/{draft}/summary", filing_pages.summary_page),
    ("/federation", pages.federation_page),
    ("/register", register.register_page),
    ("/register.csv", register.register_csv),
    ("/register.jsonld", register.register_jsonld),
    ("/refusals", pages.refusals_page),
    ("/access", pages.access_page),
)
ACTIONS: tuple[tuple[str, Action], ...] = (
    ("/file", filing_pages.take_target),
    ("/file/{draft}", filing_pages.take_details),
    ("/file/{draft}/summary", filing_pages.file_it),
    ("/requests/{id}/{action}", actions.act),
)


def make_app(console: Console, *, poll_s: float = POLL_S, stream_s: float = STREAM_S) -> AuthMiddleware:
    """Return the console as an ASGI application that lets nobody in but by its door."""

    async def entrance(request: Request) -> Response:
        return await enter(console.door, request)

    async def changes(request: Request) -> Response:
        told = _changes(console, request.query_params.get("page", ""), poll_s, stream_s)
        return StreamingResponse(told, media_type="text/event-stream")

    routes = [
        Route("/", _home),
        Route(ENTRANCE, entrance, methods=["GET", "POST"]),
        Route("/changes", changes),
        *(Route(f"/static/{name}", _static(name, kind)) for name, kind in STATIC.items()),
        *(Route(path, _page(console, page)) for path, page in PAGES),
        *(Route(path, _action(console, action), methods=["POST"]) for path, action in ACTIONS),
    ]
    return AuthMiddleware(Starlette(routes=routes), console.door)


STATIC = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}


async def _home(_request: Request) -> Response:
    return RedirectResponse("/requests", status_code=303)


def _static(name: str, kind: str) -> Endpoint:
    async def endpoint(_request: Request) -> Response:
        if name == "console.css":
            return Response(stylesheet(), media_type=kind)
        return Response(files("server.console").joinpath("static", name).read_bytes(), media_type=kind)

    return endpoint


def _page(console: Console, page: Page) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            return await run_in_threadpool(page, console, request)
        except FlowerUnlearningError as exc:
            return await run_in_threadpool(error_page, console, request, exc)

    return endpoint


def _action(console: Console, action: Action) -> Endpoint:
    """Wrap what a form does: nothing without the session's token."""

    async def endpoint(request: Request) -> Response:
        try:
            form = await read_form(request)
        except BodyTooLong:
            if request.url.path == "/file":
                return await run_in_threadpool(
                    filing_pages.target_page, console, request, errors={"samples": TOO_LONG}, status=413
                )
            return PlainTextResponse("This form is longer than any of the console's.\n", 413)
        try:
            if not has_token(request.state.session, form.get("csrf")):
                return PlainTextResponse(
                    "This form is not one of this session's. Nothing was done; open the page again.\n", 403
                )
            return await run_in_threadpool(action, console, request, form)
        except FlowerUnlearningError as exc:
            return await run_in_threadpool(error_page, console, request, exc)
        finally:
            await form.close()

    return endpoint


def error_page(console: Console, request: Request, error: FlowerUnlearningError) -> Response:
    """Say what is wrong; where the service does not answer, the page goes on by itself when it is back."""
    refused = isinstance(error, RequestError)
    status = 503
    if isinstance(error, AccessDenied | NotAuthenticated):
        status = 403
    elif isinstance(error, RequestNotFound):
        status = 404
    elif refused:
        status = 400 if isinstance(error, InvalidRequest) else 409
    return console.render(
        request,
        "error.html",
        status=status,
        page="error",
        live=not refused and request.method == "GET",
        sentence=str(error),
        is_refusal=refused,
    )


async def _changes(console: Console, page: str, poll_s: float, stream_s: float) -> AsyncIterator[str]:
    """Say when a page would look otherwise, as server-sent events; a comment in between keeps the line open."""
    ends = time.monotonic() + stream_s
    told = None
    yield "retry: 1000\n\n"
    while time.monotonic() < ends:
        stamp = await run_in_threadpool(console.stamp, page, not_older_than_s=poll_s * 0.8)
        yield f"data: {stamp}\n\n" if stamp != told else ":\n\n"
        told = stamp
        await asyncio.sleep(poll_s)
