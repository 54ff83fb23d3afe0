"""Which requests a list shows, and in what order: the filter of every list."""

from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum

from unlearning.requests import DeletionRequest, Outcome, Status


class Due(StrEnum):
    """Which deadlines of requests that wait for an answer."""

    OVERDUE = "overdue"
    SOON = "soon"


class Order(StrEnum):
    """What a list is sorted by; requests that are alike in this are in order of arrival."""

    ARRIVAL = "arrival"
    CLIENT = "client"
    STATUS = "status"
    RECEIVED = "received"
    DUE = "due"
    METHOD = "method"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """Which requests a list shows; what is left out does not matter.

    text: words, of which five count; each is in the reference, note or reasons, the client's id, the method, the
        submitter's name or the request's id, or in the days of its receipt and deadline (2026-11), in any case.
    first, last: the days of receipt, both included. since: changed at this time or later.
    urgent: those that need a person, or those that do not: overdue, due soon, failed, or awaiting a decision; and those
        of which nothing was shown, until a month after their deadline.
    after: the number of a request, after which the list begins. limit: 0: as many as there are at once.
    """

    statuses: tuple[Status, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    client_id: str = ""
    text: str = ""
    due: Due | None = None
    held: bool = False
    urgent: bool | None = None
    first: date | None = None
    last: date | None = None
    since: datetime | None = None
    after: int = 0
    order: Order | None = None
    descending: bool = False
    offset: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class RequestLists:
    """Several lists, of which only the totals are wanted."""

    lists: tuple[RequestFilter, ...]


@dataclass(frozen=True, slots=True)
class RequestPage:
    """Requests in order. total: how many the filter finds, on all pages together; after: counted from there."""

    requests: tuple[DeletionRequest, ...]
    total: int
