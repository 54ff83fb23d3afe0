"""Which requests a list shows, and in what order: the filter of every list, and the query that it makes.

Columns that are filtered, searched or sorted have an index each (schema.py), so that a page of 100,000 requests takes
milliseconds. Texts of people are searched where they are kept, so that an erased one is found no more.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from server.ledger import schema
from server.ledger.records import DAY
from unlearning.errors import InvalidRequest
from unlearning.gdpr import SOON, one_month_after, parse_day
from unlearning.requests import ANSWERED_STATUSES, UNSHOWN_OUTCOMES, DeletionRequest, Outcome, Status

_requests, _texts = schema.requests, schema.request_texts
MAX_WORDS = 5
_REMINDED = timedelta(days=30)
_DAY_LENGTH = len("2026-11-24")
_NUMBER = re.compile(r"r-(\d{1,9})", re.ASCII)


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


COLUMNS: Mapping[Order, sa.Column[Any]] = {
    Order.ARRIVAL: _requests.c.number,
    Order.CLIENT: _requests.c.client_id,
    Order.STATUS: _requests.c.status,
    Order.RECEIVED: _requests.c.received_on,
    Order.DUE: _requests.c.due_on,
    Order.METHOD: _requests.c.method,
    Order.CHANGED: _requests.c.updated_at,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """Which requests a list shows; what is left out does not matter.

    text: words, of which five count; each is in the reference, note or reasons, the client's id, the method, the
        submitter's name or the request's id, or is a day or a month (2026-11) of its receipt or deadline.
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
class RequestPage:
    """Requests in order. total: how many the filter finds, on all pages together; after: counted from there."""

    requests: tuple[DeletionRequest, ...]
    total: int


def find(connection: sa.Connection, wanted: RequestFilter, today: date) -> tuple[list[int], int]:
    """Return the numbers of a page's requests, in its order, and how many requests the filter finds."""
    conditions = _conditions(wanted, today, connection.dialect.name)
    total = sa.select(sa.func.count()).select_from(_requests).where(*conditions)
    column = COLUMNS[wanted.order or Order.ARRIVAL]
    ordered = (column, _requests.c.number) if column is not _requests.c.number else (column,)
    page = (
        sa.select(_requests.c.number, total.scalar_subquery().label("total"))
        .where(*conditions)
        .order_by(*(one.desc() if wanted.descending else one for one in ordered))
        .offset(wanted.offset)
        .limit(wanted.limit or None)
    )
    rows = connection.execute(page).all()
    found = rows[0].total if rows else connection.scalar(total) if wanted.offset else 0
    return [row.number for row in rows], int(found or 0)


def _conditions(wanted: RequestFilter, today: date, dialect: str) -> list[sa.ColumnElement[bool]]:
    given: list[tuple[Any, Callable[[], sa.ColumnElement[bool]]]] = [
        (wanted.after, lambda: _requests.c.number > wanted.after),
        (wanted.statuses, lambda: _requests.c.status.in_([str(one) for one in wanted.statuses])),
        (wanted.outcomes, lambda: _requests.c.outcome.in_([str(one) for one in wanted.outcomes])),
        (wanted.client_id, lambda: _requests.c.client_id == wanted.client_id),
        (wanted.first, lambda: _requests.c.received_on >= wanted.first),
        (wanted.last, lambda: _requests.c.received_on <= wanted.last),
        (wanted.since, lambda: _requests.c.updated_at >= wanted.since),
        (wanted.due, lambda: _is_due(wanted.due, today)),
        (wanted.held, lambda: _waits() & _requests.c.is_held),
        (wanted.urgent, lambda: _is_urgent(today)),
        (wanted.urgent is False, lambda: sa.not_(_is_urgent(today))),
    ]
    words = wanted.text.split()[:MAX_WORDS]
    return [condition() for is_given, condition in given if is_given] + [
        _requests.c.number.in_(sa.select(_hits(word, dialect).c.number)) for word in words
    ]


def _is_due(due: Due | None, today: date) -> sa.ColumnElement[bool]:
    first, last = (date.min, today - DAY) if due is Due.OVERDUE else (today, today + SOON)
    return _waits() & _requests.c.due_on.between(first, last)


def _is_urgent(today: date) -> sa.ColumnElement[bool]:
    """Return that a request needs a person; what is read for it is in one index."""
    columns = _requests.c
    waits = _waits() & (
        (columns.due_on <= today + SOON) | columns.status.in_([str(Status.FAILED), str(Status.AWAITING)])
    )
    unshown = (columns.status == str(Status.COMPLETED)) & (columns.due_on >= today - _REMINDED)
    weak = sa.func.coalesce(columns.outcome, "").in_([str(one) for one in UNSHOWN_OUTCOMES])
    return waits | (unshown & weak)


def _waits() -> sa.ColumnElement[bool]:
    """Return that a request is not answered yet: few of a large ledger are, and they have an index."""
    return _requests.c.status.in_([str(status) for status in Status if status not in ANSWERED_STATUSES])


def _hits(word: str, dialect: str) -> sa.CTE:
    """Return the numbers of the requests that have a word somewhere; each branch reads one index, or the texts."""
    escaped = re.sub(r"([\\%_])", r"\\\1", word)

    def has_word(column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        # SQLite's LIKE takes no heed of case by itself, and twice as fast as by lower().
        like = column.ilike if dialect == "postgresql" else column.like
        return like(f"%{escaped}%", escape="\\")

    columns = (_requests.c.client_id, _requests.c.method, _requests.c.submitted_by)
    found = [
        sa.select(_texts.c.request_number.label("number")).where(has_word(_texts.c.text)),
        sa.select(_requests.c.number).where(sa.or_(*map(has_word, columns))),
        sa.select(_requests.c.number).where(_waits(), has_word(_requests.c.reason)),
    ]
    if named := _NUMBER.fullmatch(word.lower()):
        found.append(sa.select(_requests.c.number).where(_requests.c.number == int(named[1])))
    if first := _first_day(word):
        last = first if len(word) == _DAY_LENGTH else one_month_after(first) - DAY
        found += [
            sa.select(_requests.c.number).where(column.between(first, last))
            for column in (_requests.c.received_on, _requests.c.due_on)
        ]
    return sa.union_all(*found).cte()


def _first_day(word: str) -> date | None:
    """Return the day that a word names, or the first one of the month that it names."""
    try:
        return parse_day("day", word if len(word) == _DAY_LENGTH else f"{word}-01")
    except InvalidRequest:
        return None
