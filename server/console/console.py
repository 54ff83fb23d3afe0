"""The console itself: whose it is, what it knows, and how a page is made of that."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from server.api.access import ALLOWED, Caller
from server.api.client import DeletionClient, Report
from server.api.narrator import GOING_ON, MEANINGS
from server.console.auth import LoginLink, Session
from server.console.federation import FederationMirror, describe_round, failures_of, figure
from server.console.filing import Drafts
from server.console.mirror import Mirror
from server.report import environment, style, words
from unlearning.gdpr import Ground, today

_KEPT_REPORTS = 16


@dataclass(frozen=True, slots=True)
class Console:
    """One officer's (operator's, client's) console.

    service: reached with the caller's own certificate, which says what may be done. caller: what it says, to show no
    button that would be refused. public_key: of the server's certificates of deletion, where the officer has it.
    report: of a completed request, which never changes; the last ones are kept, for a page that follows what happens
    asks again and again.
    """

    service: DeletionClient
    caller: Caller
    address: str
    door: LoginLink
    public_key: Ed25519PublicKey | None = None
    not_after: datetime | None = None
    mirror: Mirror = field(init=False)
    federation: FederationMirror = field(init=False)
    drafts: Drafts = field(default_factory=Drafts)
    report: Callable[[str], Report] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mirror", Mirror(self.service, self.caller))
        object.__setattr__(self, "federation", FederationMirror(self.service, self.caller))
        object.__setattr__(self, "report", lru_cache(maxsize=_KEPT_REPORTS)(self.service.report))

    def may(self, call: str) -> bool:
        """Return whether the caller's role may make a call; the service decides, this only hides buttons."""
        return self.caller.role in ALLOWED.get(call, frozenset())

    def stamp(self, page: str, *, not_older_than_s: float = 0.0) -> str:
        """Return a word that changes when a page of this kind would."""
        word = self.mirror.now(not_older_than_s=not_older_than_s).stamp
        if page in ("federation", "request"):
            word += f"/{self.federation.now(not_older_than_s=not_older_than_s).stamp}"
        return word

    def render(self, request: Request, name: str, *, status: int = 200, **context: Any) -> Response:
        """Answer with a page. context: `page` (its kind), and `live` where it follows what happens.

        stamp: of what the page shows, taken before that was read, so that a change in between is read once more.
        """
        session: Session = request.state.session
        context.setdefault("page", name.removesuffix(".html"))
        context.setdefault("live", False)
        context.setdefault("stamp", "")
        text = (
            _environment()
            .get_template(name)
            .render(
                console=self,
                caller=self.caller,
                csrf=session.csrf,
                path=request.url.path,
                service=self.mirror.now(not_older_than_s=1.0),
                today=today(),
                **context,
            )
        )
        return HTMLResponse(text, status_code=status)


@cache
def stylesheet() -> str:
    """Return the report's style and what the console adds to it."""
    own = files("server.console").joinpath("static", "console.css").read_text(encoding="utf-8")
    return f"{style()}\n{own}"


@cache
def _environment() -> Environment:
    made = environment("server.console")
    made.globals.update(
        size=words.size,
        duration=words.duration,
        share=words.share,
        number=words.number,
        count=words.count,
        meanings=MEANINGS,
        going_on=GOING_ON,
        describe_round=describe_round,
        failures_of=failures_of,
        grounds={str(ground): ground.describe() for ground in Ground},
        figure=figure,
    )
    made.filters.update(moment=_moment, day=_day, anchor=_anchor)
    return made


def _moment(value: datetime) -> str:
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _day(value: datetime) -> str:
    return f"{value.astimezone(UTC):%Y-%m-%d}"


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-") or "x"
