"""The list of requests as a page shows it: filtered, searched, sorted, and a page of it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any
from urllib.parse import urlencode

from unlearning.gdpr import SOON
from unlearning.requests import DeletionRequest, Status

PAGE = 50
OPEN = "open"
SORTS: Mapping[str, tuple[str, Callable[[DeletionRequest], Any]]] = {
    "id": ("Request", lambda item: item.id),
    "subject": ("Subject", lambda item: item.target.describe()),
    "state": ("State", lambda item: list(Status).index(item.status)),
    "received": ("Received", lambda item: (item.received_on, item.id)),
    "due": ("Due", lambda item: (item.is_answered, item.due_on, item.id)),
    "method": ("Method", lambda item: item.method),
}
"""What a list can be sorted by: the column's heading, and its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """What a reader asked of the list. What makes no sense in an address counts as not said."""

    search: str = ""
    state: str = ""
    sort: str = "id"
    is_descending: bool = True
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "ListQuery":
        """Read an address's query."""
        state, sort = query.get("state", ""), query.get("sort", "id")
        return cls(
            search=query.get("q", "").strip()[:200],
            state=state if state in states() else "",
            sort=sort if sort in SORTS else "id",
            is_descending=query.get("dir", "down") != "up",
            page=page_number(query),
        )

    def link(self, **changes: Any) -> str:
        """Return the query of the same list with something changed."""
        says = {
            "q": self.search,
            "state": self.state,
            "sort": self.sort,
            "dir": "down" if self.is_descending else "up",
            "page": 1,
            **changes,
        }
        return "?" + urlencode({name: value for name, value in says.items() if value != ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """One page: its rows, and of how many requests and pages it is one."""

    rows: tuple[DeletionRequest, ...]
    num_found: int
    page: int
    num_pages: int
    counts: Mapping[str, int]

    @classmethod
    def of(cls, found: Sequence[DeletionRequest], page: int, counts: Mapping[str, int]) -> "ListPage":
        """Cut a page out of what was found, the last one where it is beyond."""
        num_pages = max(1, math.ceil(len(found) / PAGE))
        page = min(page, num_pages)
        rows = tuple(found[(page - 1) * PAGE : page * PAGE])
        return cls(rows=rows, num_found=len(found), page=page, num_pages=num_pages, counts=counts)


def page_number(query: Mapping[str, str]) -> int:
    """Return which page an address's query asks for: the first where it says none."""
    text = query.get("page", "")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 8 else 1


def states(today: date = date.max) -> Mapping[str, Callable[[DeletionRequest], bool]]:
    """Return what the filter of states knows, by its word. Open is what is not answered yet."""
    each = {str(status): (lambda item, status=status: item.status is status) for status in Status}
    last = today + SOON if today < date.max else today
    return {
        OPEN: lambda item: not item.is_answered,
        "overdue": lambda item: item.is_overdue(today),
        "due soon": lambda item: not item.is_answered and today <= item.due_on <= last,
        "held": lambda item: item.is_held and not item.is_answered,
        **each,
    }


def page_of(requests: Iterable[DeletionRequest], asked: ListQuery, today: date) -> ListPage:
    """Return the page that was asked for."""
    everything = list(requests)
    known = states(today)
    counts = {word: sum(map(is_one, everything)) for word, is_one in known.items()}
    found = [item for item in everything if not asked.state or known[asked.state](item)]
    if asked.search:
        words = asked.search.casefold().split()
        found = [item for item in found if all(word in _text(item) for word in words)]
    found.sort(key=SORTS[asked.sort][1], reverse=asked.is_descending)
    return ListPage.of(found, asked.page, counts)


def _text(request: DeletionRequest) -> str:
    """Return what a search looks into."""
    parts = (
        request.id,
        request.target.describe(),
        request.method,
        request.submitted_by,
        request.reason,
        request.reference,
    )
    return "\n".join(parts).casefold()
