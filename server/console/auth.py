"""Authentication: one browser, by a token that works once, from this machine and from no other page.

a private file that posts the token, or a link with it ──► a session cookie (HttpOnly, SameSite=Strict)
every request         the Host is this console's own (a name that another party's DNS points here is not)
every form            the session's CSRF token, and an Origin that is this console's own if the browser says one
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ENTRANCE = "/enter"
OPEN_TO_ALL = (ENTRANCE, "/static/")
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # With no-referrer a browser would send `Origin: null` with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""What every answer carries, unless it has a header of its own by that name."""


_LONGEST_FORM = 1000
_POSTING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>flower-unlearning</title>
<form method="post" action="{address}"><input type="hidden" name="token" value="{token}">
<button>Open the console</button></form>
<script>document.forms[0].submit()</script></html>
"""
# Not a redirect: that would count as the step of the page before, and such a one carries no cookie of SameSite=Strict.
_ENTERED = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=/requests">
<title>flower-unlearning</title><a href="/requests">Requests</a></html>
"""


@dataclass(frozen=True, slots=True)
class Session:
    """One browser that came by the link: its cookie's value, and the token that its forms carry."""

    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))


class LoginLink:
    """The one-time link, and the session of the browser that came by it. say: prints a line in the terminal."""

    def __init__(self, port: int, say: Callable[[str], None]) -> None:
        self.hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        # Cookies know no ports: each console has a name of its own for its cookie.
        self.cookie_name = f"flower-unlearn-console-{port}"
        self._address = f"http://127.0.0.1:{port}"
        self._token = secrets.token_urlsafe(32)
        self._session: Session | None = None
        self._say = say

    @property
    def link(self) -> str:
        """The address with which a browser comes in, once."""
        return f"{self._address}{ENTRANCE}?token={self._token}"

    @property
    def page(self) -> str:
        """A page for a private file, with which a browser comes in, once.

        A browser that is started has its address as an argument, which every account of the machine can read.
        """
        return _POSTING.format(address=f"{self._address}{ENTRANCE}", token=self._token)

    def enter(self, token: str) -> Session | None:
        """Return a session for the token, which is used up by this; None for a wrong or used one."""
        if not _equal(token, self._token):
            return None
        if self._session is not None:
            self._say(
                "The link was used a second time, and refused. If the browser that came in before is not yours, "
                "another account of this machine has your rights: end the console now (Ctrl-C). "
                "Started again, it has another link."
            )
            return None
        self._session = Session()
        self._say("A browser has come in by the link. If it is not yours, end the console now (Ctrl-C).")
        return self._session

    def session_of(self, cookie: str) -> Session | None:
        """Return the session with this cookie's value, if there is one."""
        known = self._session
        return known if known is not None and _equal(cookie, known.cookie) else None

    def is_own_origin(self, request: Request) -> bool:
        """Return whether a form comes from a page of this console, as far as the browser says."""
        origin = request.headers.get("origin")
        site = request.headers.get("sec-fetch-site", "same-origin")
        own = origin is None or origin in {f"http://{host}" for host in self.hosts}
        return own and site in ("same-origin", "none")


class AuthMiddleware:
    """ASGI middleware that checks the session of each request, and puts the headers on each answer."""

    def __init__(self, app: ASGIApp, login: LoginLink) -> None:
        self._app = app
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(Request(scope))
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        login = self._login
        if request.headers.get("host", "") not in login.hosts:
            return _refuse(421, "This console answers to 127.0.0.1 and localhost only, at its own port.")
        if request.url.path.startswith(OPEN_TO_ALL):
            return None
        session = login.session_of(request.cookies.get(login.cookie_name, ""))
        if session is None:
            return _refuse(
                403,
                "This browser is not signed in. Open the link that `flower-unlearn console` printed; it works once. "
                "Was it used already? End the console (Ctrl-C) and start it again for a new link.",
            )
        if request.method not in ("GET", "HEAD") and not login.is_own_origin(request):
            return _refuse(403, "This form came from another site. Nothing was done.")
        request.state.session = session
        return None


async def log_in(login: LoginLink, request: Request) -> Response:
    """Answer a browser that brings the token, in a form or by the link: a cookie and the first page."""
    is_form = request.method == "POST"
    session = login.enter(await _posted_token(request) if is_form else request.query_params.get("token", ""))
    if session is None:
        return _refuse(
            403,
            "This link was used already, or is another console's. End the console (Ctrl-C) and start it again for a "
            "new one.",
        )
    answer = HTMLResponse(_ENTERED) if is_form else RedirectResponse("/requests", status_code=303)
    answer.set_cookie(login.cookie_name, session.cookie, httponly=True, samesite="strict", path="/")
    return answer


async def _posted_token(request: Request) -> str:
    """Return the token of a form; of a longer one, which any account can send, nothing is kept."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_FORM:
            return ""
    return dict(parse_qsl(body.decode(errors="replace"))).get("token", "")


def has_token(session: Session, token: object) -> bool:
    """Return whether a form carries the session's CSRF token."""
    return isinstance(token, str) and _equal(token, session.csrf)


def _refuse(status: int, sentence: str) -> Response:
    return PlainTextResponse(f"{sentence}\n", status_code=status)


def _equal(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), known.encode())
