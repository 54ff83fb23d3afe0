"""Whose console it is, what it knows, and how a page is made of that."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from server.console.auth import LoginLink
from server.console.filing import Drafts
from server.console.mirror import Mirror
from server.console.saved_filters import SavedFilters
from server.console.telling import OUTCOME_WORDS
from server.report.templating import environment
from server.service.access import Caller
from server.service.calls import Report
from server.service.client import DeletionClient
from unlearning.gdpr import today
from unlearning.requests import UNSHOWN_OUTCOMES, DeletionRequest

_KEPT_REPORTS = 16


@dataclass(frozen=True, slots=True)
class Console:
    """One officer's (operator's, client's) console.

    service: reached with the caller's own certificate, which says what may be done. caller: what it says, to show no
    button that would be refused. public_key: of the server's certificates of deletion, where the officer has it.
    report: of a completed request, which never changes; the last ones are kept, for pages that refresh themselves.
    """

    service: DeletionClient
    caller: Caller
    address: str
    login: LoginLink
    filters: SavedFilters
    public_key: Ed25519PublicKey | None = None
    not_after: datetime | None = None
    mirror: Mirror = field(init=False)
    drafts: Drafts = field(default_factory=Drafts)
    report: Callable[[str], Report] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mirror", Mirror(self.service, self.caller))
        object.__setattr__(self, "report", lru_cache(maxsize=_KEPT_REPORTS)(self.service.report))

    def may(self, call: str) -> bool:
        """Return whether the caller's role may make a call; the service decides, this only hides buttons."""
        return self.caller.may(call)

    def find(self, request_id: str) -> DeletionRequest:
        """Return a request.

        Raises:
            RequestNotFound: the caller may see none with this id.
        """
        return self.service.get(request_id[:40])

    def render(self, request: Request, name: str, *, status: int = 200, **context: Any) -> Response:
        """Answer with a page. context: `page` (its kind), and `live` where it refreshes itself.

        The stamp is taken before the page reads what it shows, so that a change in between is read once more.
        """
        known = context.get("known") or self.mirror.now(not_older_than_s=1.0)
        defaults = {"page": name.removesuffix(".html"), "live": False, "known": known}
        text = (
            _environment()
            .get_template(name)
            .render(
                console=self,
                caller=self.caller,
                csrf=request.state.session.csrf,
                today=today(),
                **defaults | context,
            )
        )
        return HTMLResponse(text, status_code=status)


def download(content: bytes, name: str, kind: str) -> Response:
    """Return a file to be saved."""
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers=headers)


@cache
def _environment() -> Environment:
    made = environment("server.console")
    made.filters.update(
        moment=lambda value: f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
        day=lambda value: f"{value.astimezone(UTC):%Y-%m-%d}",
    )
    made.globals.update(unshown=UNSHOWN_OUTCOMES, outcome_words=OUTCOME_WORDS)
    return made
