"""The console's routes: each page is a function of the console and the request."""

from collections.abc import Callable
from functools import partial

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from server.console import federation_page, filing_pages, pages, request_list, request_page
from server.console.auth import ENTRANCE, AuthMiddleware, has_token, log_in
from server.console.filing import TOO_LONG
from server.console.forms import BodyTooLong, read_form
from server.console.rendering import Console
from server.service.statuses import AccessDenied, NotAuthenticated
from unlearning.errors import FlowerUnlearningError, InvalidRequest, RequestError, RequestNotFound

Page = Callable[[Console, Request], Response]
Action = Callable[[Console, Request, FormData], Response]

PAGES: tuple[tuple[str, Page], ...] = (
    ("/requests", request_list.requests_page),
    ("/requests/{id}", request_page.request_page),
    ("/requests/{id}/report", pages.report),
    ("/requests/{id}/report.json", pages.report_json),
    ("/requests/{id}/certificate", pages.certificate_page),
    ("/requests/{id}/certificate.json", pages.certificate_json),
    ("/file", filing_pages.target_page),
    ("/file/{draft}", filing_pages.plan_page),
    ("/file/{draft}/summary", filing_pages.summary_page),
    ("/federation", federation_page.federation_page),
    ("/register", request_list.register_page),
    ("/register.csv", request_list.register_csv),
    ("/register.jsonld", request_list.register_jsonld),
    ("/refusals", pages.refusals_page),
    ("/access", pages.access_page),
)
ACTIONS: tuple[tuple[str, Action], ...] = (
    ("/file", filing_pages.take_target),
    ("/file/{draft}", filing_pages.take_details),
    ("/file/{draft}/summary", filing_pages.file_it),
    ("/requests/{id}/{action}", request_page.act),
    ("/bulk/{action}", request_list.act_on_several),
    ("/filters/save", request_list.save_filter),
    ("/filters/delete", request_list.delete_filter),
)
STATIC: list[str | tuple[str, str]] = [("server.console", "static"), ("server.report", "static")]


def make_app(console: Console) -> AuthMiddleware:
    """Return the console as an ASGI application that only a browser with the login link can use."""
    routes = [
        Route("/", lambda _request: RedirectResponse("/requests", status_code=303)),
        Route(ENTRANCE, partial(log_in, console.login), methods=["GET", "POST"]),
        Route("/stamp", lambda _request: PlainTextResponse(console.mirror.now(not_older_than_s=0.8).stamp)),
        Mount("/static", StaticFiles(packages=STATIC)),
        *(Route(path, partial(page, console)) for path, page in PAGES),
        *(Route(path, partial(_act, console, action), methods=["POST"]) for path, action in ACTIONS),
    ]
    handlers = {FlowerUnlearningError: partial(error_page, console), BodyTooLong: partial(_too_long, console)}
    return AuthMiddleware(Starlette(routes=routes, exception_handlers=handlers), console.login)


async def _act(console: Console, action: Action, request: Request) -> Response:
    """Do what a form asks for: nothing without the session's token."""
    form = await read_form(request)
    try:
        if not has_token(request.state.session, form.get("csrf")):
            return PlainTextResponse(
                "This form is not one of this session's. Nothing was done; open the page again.\n", 403
            )
        return await run_in_threadpool(action, console, request, form)
    finally:
        await form.close()


def _too_long(console: Console, request: Request, _error: BodyTooLong) -> Response:
    if request.url.path == "/file":
        return filing_pages.target_page(console, request, errors={"samples": TOO_LONG}, status=413)
    return PlainTextResponse("This form is longer than any of the console's.\n", 413)


def error_page(console: Console, request: Request, error: FlowerUnlearningError) -> Response:
    """Say what is wrong; where the service does not answer, the page refreshes itself when it is back."""
    is_refusal = isinstance(error, RequestError)
    status = 409 if is_refusal else 503
    for kinds, code in (
        ((AccessDenied, NotAuthenticated), 403),
        ((RequestNotFound,), 404),
        ((InvalidRequest,), 400),
    ):
        if isinstance(error, kinds):
            status = code
    return console.render(
        request,
        "error.html",
        status=status,
        page="error",
        live=not is_refusal and request.method == "GET",
        sentence=str(error),
        is_refusal=is_refusal,
    )
