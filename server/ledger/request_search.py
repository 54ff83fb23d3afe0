"""The query that a list's filter makes.

Columns that are filtered or sorted have an index each (schema.py), so that a page of 100,000 requests takes
milliseconds. Words are looked for in memory, the same way whatever the database: what they are looked for in is read at
the first search, and of requests that have changed since before each further one, so an erased text is found no more.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import reduce
from operator import sub
from threading import Lock
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from server.ledger import schema
from server.ledger.records import DAY, request_id
from server.ledger.request_filter import Due, Order, RequestFilter
from unlearning.gdpr import SOON
from unlearning.requests import ANSWERED_STATUSES, UNSHOWN_OUTCOMES, Status

_requests, _texts, _events = schema.requests, schema.request_texts, schema.events
MAX_WORDS = 5
_REMINDED = timedelta(days=30)
# A statement takes so many numbers on each database; beyond it, what has to be compared is compared here.
_MOST_NAMED = 500


COLUMNS: Mapping[Order, sa.Column[Any]] = {
    Order.ARRIVAL: _requests.c.number,
    Order.CLIENT: _requests.c.client_id,
    Order.STATUS: _requests.c.status,
    Order.RECEIVED: _requests.c.received_on,
    Order.DUE: _requests.c.due_on,
    Order.METHOD: _requests.c.method,
    Order.CHANGED: _requests.c.updated_at,
}


class Searched:
    """What a search reads of each request, in order of arrival; of one ledger, for several threads."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._newest = -1
        self._lock = Lock()

    def hits(self, connection: sa.Connection, words: Sequence[str]) -> list[int]:
        """Return the numbers of the requests that have each of the words somewhere."""
        with self._lock:
            self._refresh(connection)
            texts = self._texts
        first, *others = words
        found = [number for number, text in texts.items() if first in text]
        for word in others:
            found = [number for number in found if word in texts[number]]
        return found

    def _refresh(self, connection: sa.Connection) -> None:
        """Read again what has changed: each change of a request has an event."""
        newest = connection.scalar(sa.select(sa.func.max(_events.c.sequence))) or 0
        if newest == self._newest:
            return
        since = (_events.c.sequence > self._newest) & _events.c.request_number.is_not(None)
        changed = set(connection.scalars(sa.select(_events.c.request_number).where(since)))
        if self._newest < 0 or len(changed) > _MOST_NAMED:
            self._texts = _read(connection)
        else:
            self._texts = self._texts | _read(connection, changed)  # others look in the old one
        self._newest = newest


def _read(connection: sa.Connection, numbers: Iterable[int] | None = None) -> dict[int, str]:
    """Return what is searched of requests, of all where none are named, by number and in this order."""
    columns = _requests.c
    wanted = sa.select(
        *(columns.number, columns.client_id, columns.method, columns.submitted_by),
        *(columns.received_on, columns.due_on, sa.case((_waits(), columns.reason), else_="").label("reason")),
    ).order_by(columns.number)
    written = sa.select(_texts.c.request_number, _texts.c.text).where(_texts.c.text.is_not(None))
    if numbers is not None:
        wanted = wanted.where(columns.number.in_(numbers))
        written = written.where(_texts.c.request_number.in_(numbers))
    found = {number: [request_id(number), *map(str, said)] for number, *said in connection.execute(wanted)}
    for number, text in connection.execute(written):
        found[number].append(text)
    return {number: "\n".join(texts).lower() for number, texts in found.items()}


def find(
    connection: sa.Connection, wanted: RequestFilter, today: date, searched: Searched
) -> tuple[list[int], int]:
    """Return the numbers of a page's requests, in its order, and how many requests the filter finds."""
    conditions, hits = _conditions(wanted, today), _hits(connection, wanted, searched)
    leaves_few_out = _leaves_few_out(wanted, conditions)
    if hits is None:
        total = _total(wanted, conditions, today)
    elif conditions or wanted.order not in (None, Order.ARRIVAL):
        total = sa.func.count().over() if conditions else sa.literal(len(hits))
        conditions.append(_among(connection, hits))
    else:
        last = wanted.offset + wanted.limit if wanted.limit else None
        return hits[:: -1 if wanted.descending else 1][wanted.offset : last], len(hits)
    # one state's requests are in an index in the order of their deadlines
    by_index = leaves_few_out or (wanted.order is Order.DUE and len(wanted.statuses) == 1)
    listed = _ordered(wanted, conditions, by_index=by_index).add_columns(total.label("total"))
    rows = connection.execute(listed.offset(wanted.offset).limit(wanted.limit or None)).all()
    found = (
        rows[0].total if rows else connection.scalar(sa.select(_count(*conditions))) if wanted.offset else 0
    )
    return [row.number for row in rows], int(found or 0)


def count(connection: sa.Connection, wanted: RequestFilter, today: date, searched: Searched) -> int:
    """Return how many requests the filter finds."""
    conditions, hits = _conditions(wanted, today), _hits(connection, wanted, searched)
    if hits is None:
        return int(connection.scalar(sa.select(_total(wanted, conditions, today))) or 0)
    if not conditions:
        return len(hits)
    return int(connection.scalar(sa.select(_count(*conditions, _among(connection, hits)))) or 0)


def _hits(connection: sa.Connection, wanted: RequestFilter, searched: Searched) -> list[int] | None:
    """Return the numbers of the requests that have the words, in order of arrival; None where no words are given."""
    words = wanted.text.lower().split()[:MAX_WORDS]
    return searched.hits(connection, words) if words else None


def _total(
    wanted: RequestFilter, conditions: Sequence[sa.ColumnElement[bool]], today: date
) -> sa.ColumnElement[int]:
    """Return how many requests meet the conditions; where these leave few out, the few are counted."""
    if not conditions or not _leaves_few_out(wanted, conditions):
        return _count(*conditions)
    return reduce(sub, map(_count, _reasons(today)), _count())


def _leaves_few_out(wanted: RequestFilter, conditions: Sequence[sa.ColumnElement[bool]]) -> bool:
    """Return whether the conditions leave out nothing, or only what needs a person."""
    return not conditions or (wanted.urgent is False and len(conditions) == 1)


def _among(connection: sa.Connection, numbers: Sequence[int]) -> sa.ColumnElement[bool]:
    """Return that a request is one of these; of many, each is looked for among them, and not they in the table."""
    number = _requests.c.number
    if len(numbers) <= _MOST_NAMED:
        return number.in_(numbers)
    if connection.dialect.name == "postgresql":
        return number == sa.any_(sa.literal(numbers, ARRAY(sa.Integer)))
    listed = sa.func.json_each(json.dumps(numbers)).table_valued("value")
    return _plain(number).in_(sa.select(listed.c.value))


def _plain(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return a column's value as an expression, by which SQLite looks into no index of this column alone.

    It takes such an index for the shortest way also where nearly all requests are in the range that is asked for.
    """
    return sa.func.coalesce(column, column)


def _count(*conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.select(sa.func.count()).select_from(_requests).where(*conditions).scalar_subquery()


def _ordered(
    wanted: RequestFilter, conditions: Iterable[sa.ColumnElement[bool]], *, by_index: bool
) -> sa.Select[Any]:
    """Return the query of the numbers in their order.

    by_index: whether nearly all that an index of the order has is wanted; else it is sorted after it is found.
    """
    column = COLUMNS[wanted.order or Order.ARRIVAL]
    columns = (column, _requests.c.number) if column is not _requests.c.number else (column,)
    by = columns if by_index else [_plain(one) for one in columns]
    order = (one.desc() if wanted.descending else one for one in by)
    return sa.select(_requests.c.number).where(*conditions).order_by(*order)


def _conditions(wanted: RequestFilter, today: date) -> list[sa.ColumnElement[bool]]:
    given: list[tuple[Any, Callable[[], sa.ColumnElement[bool]]]] = [
        (wanted.after, lambda: _requests.c.number > wanted.after),
        (wanted.statuses, lambda: _requests.c.status.in_([str(one) for one in wanted.statuses])),
        (wanted.outcomes, lambda: _requests.c.outcome.in_([str(one) for one in wanted.outcomes])),
        (wanted.client_id, lambda: _requests.c.client_id == wanted.client_id),
        (wanted.first, lambda: _plain(_requests.c.received_on) >= wanted.first),
        (wanted.last, lambda: _plain(_requests.c.received_on) <= wanted.last),
        (wanted.since, lambda: _plain(_requests.c.updated_at) >= wanted.since),
        (wanted.due, lambda: _is_due(wanted.due, today)),
        (wanted.held, lambda: _waits() & _requests.c.is_held),
        (wanted.urgent, lambda: _is_unshown(today) if wanted.outcomes else _is_urgent(today)),
        (wanted.urgent is False, lambda: sa.not_(_is_urgent(today))),
    ]
    return [condition() for is_given, condition in given if is_given]


def _is_due(due: Due | None, today: date) -> sa.ColumnElement[bool]:
    first, last = (date.min, today - DAY) if due is Due.OVERDUE else (today, today + SOON)
    return _waits() & _requests.c.due_on.between(first, last)


def _is_urgent(today: date) -> sa.ColumnElement[bool]:
    """Return that a request needs a person."""
    return sa.or_(*_reasons(today))


def _reasons(today: date) -> tuple[sa.ColumnElement[bool], ...]:
    """Return why requests need a person, each for one reason; each is in one index."""
    columns = _requests.c
    is_near = columns.due_on <= today + SOON
    is_stuck = columns.status.in_([str(Status.FAILED), str(Status.REOPENED), str(Status.AWAITING)])
    return _waits() & is_near, is_stuck & ~is_near, _is_unshown(today)


def _is_unshown(today: date) -> sa.ColumnElement[bool]:
    """Return that a request was completed, nothing was shown by it, and a person is still reminded of that."""
    columns = _requests.c
    weak = sa.func.coalesce(columns.outcome, "").in_([str(one) for one in UNSHOWN_OUTCOMES])
    return (columns.status == str(Status.COMPLETED)) & (columns.due_on >= today - _REMINDED) & weak


def _waits() -> sa.ColumnElement[bool]:
    """Return that a request is not answered yet: few of a large ledger are, and they have an index."""
    return _requests.c.status.in_([str(status) for status in Status if status not in ANSWERED_STATUSES])
