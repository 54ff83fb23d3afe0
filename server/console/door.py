"""Who may use the console: one browser, by a link that works once, from this machine and from no other page.

link with a token ──► a session cookie (HttpOnly, SameSite=Strict)
every request         the Host is this console's own (a name that a stranger's DNS points here is not)
every form            the session's CSRF token, and an Origin that is this console's own if the browser says one
"""

import hmac
import secrets
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
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


@dataclass(frozen=True, slots=True)
class Session:
    """One browser that came by the link: its cookie's value, and the token that its forms carry."""

    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))


class Door:
    """The one-time link, and the session of who came by it."""

    def __init__(self, port: int) -> None:
        self.hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        # Cookies know no ports: each console has a name of its own for its cookie.
        self.cookie_name = f"flower-unlearn-console-{port}"
        self._address = f"http://127.0.0.1:{port}"
        self._token: str | None = secrets.token_urlsafe(32)
        self._session: Session | None = None

    @property
    def link(self) -> str:
        """The address with which a browser comes in, once."""
        return f"{self._address}{ENTRANCE}?token={self._token}"

    def enter(self, token: str) -> Session | None:
        """Return a session for the token, which is used up by this; None for a wrong one."""
        if self._token is None or not _equal(token, self._token):
            return None
        self._token, self._session = None, Session()
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


class Guard:
    """ASGI middleware that asks the door of each request, and puts the headers on each answer."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

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
        door = self._door
        if request.headers.get("host", "") not in door.hosts:
            return _refuse(421, "This console answers to 127.0.0.1 and localhost only, at its own port.")
        if request.url.path.startswith(OPEN_TO_ALL):
            return None
        session = door.session_of(request.cookies.get(door.cookie_name, ""))
        if session is None:
            return _refuse(
                403,
                "This browser is not signed in. Open the link that `flower-unlearn console` printed; it works once. "
                "Was it used already? End the console (Ctrl-C) and start it again for a new link.",
            )
        if request.method not in ("GET", "HEAD") and not door.is_own_origin(request):
            return _refuse(403, "This form came from another site. Nothing was done.")
        request.state.session = session
        return None


def enter(door: Door, request: Request) -> Response:
    """Answer the one-time link: a cookie and the first page."""
    session = door.enter(request.query_params.get("token", ""))
    if session is None:
        return _refuse(
            403,
            "This link was used already, or is another console's. End the console (Ctrl-C) and start it again for a "
            "new one.",
        )
    answer = RedirectResponse("/requests", status_code=303)
    answer.set_cookie(door.cookie_name, session.cookie, httponly=True, samesite="strict", path="/")
    return answer


def has_token(session: Session, token: object) -> bool:
    """Return whether a form carries the session's CSRF token."""
    return isinstance(token, str) and _equal(token, session.csrf)


def _refuse(status: int, sentence: str) -> Response:
    return PlainTextResponse(f"{sentence}\n", status_code=status)


def _equal(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), known.encode())
