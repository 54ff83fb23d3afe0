"""What happened: the chained events, what can be counted without reading requests, and the calls that were refused."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from server.ledger import chain, check, schema, seals, texts
from server.ledger.part import Part, all_pages
from server.ledger.records import ACCEPTED_LOSS, Event, Refusal, as_json, request_number
from unlearning.requests import Status
from unlearning.untrusted import as_line

_requests = schema.requests


class HistoryPart(Part):
    """The events, their chain and counts, and refusals."""

    def events(self, request_id: str | None = None, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events with a sequence number above `after`, in order; of one request where given."""
        query = sa.select(schema.events).where(schema.events.c.sequence > after)
        if request_id is not None:
            query = query.where(schema.events.c.request_number == request_number(request_id))
        query = query.order_by(schema.events.c.sequence).limit(limit)
        with self._database.reading() as connection:
            return texts.events_of(connection, connection.execute(query).all())

    def all_events(self, request_id: str | None = None, *, after: int = 0) -> Iterator[Event]:
        """Yield all events with a sequence number above `after`, in order, read page by page."""
        return all_pages(
            lambda number, limit: self.events(request_id, after=number, limit=limit), after=after
        )

    def accepted_loss(self, request_id: str) -> tuple[float, str]:
        """Return how many points of score the request's last retry lets the model lose, and who accepted it."""
        found = (0.0, "")
        for event in self.all_events(request_id):
            if event.from_status is Status.FAILED:
                found = (float(event.detail.get(ACCEPTED_LOSS, 0.0)), event.actor)
        return found

    def last_event_sequence(self) -> int:
        """Return the sequence number of the newest event; 0 where there is none."""
        return self.newest()[0]

    def last_request_event_sequence(self) -> int:
        """Return the sequence number of the newest event of a request; 0 where there is none."""
        of_requests = sa.select(schema.events.c.sequence).where(schema.events.c.request_number.is_not(None))
        newest = of_requests.order_by(schema.events.c.sequence.desc()).limit(1)
        with self._database.reading() as connection:
            return connection.scalar(newest) or 0

    def newest(self) -> tuple[int, int]:
        """Return the sequence numbers of the newest event and the newest round, 0 where there is none: it is cheap."""
        events = sa.select(sa.func.max(schema.events.c.sequence)).scalar_subquery()
        rounds = sa.select(sa.func.max(schema.rounds.c.sequence)).scalar_subquery()
        with self._database.reading() as connection:
            event, round_ = connection.execute(sa.select(events, rounds)).one()
        return event or 0, round_ or 0

    def event_head(self) -> tuple[int, str]:
        """Return sequence number and hash of the newest event; 0 and 64 zeros where there is none.

        Kept elsewhere, it proves later that no event up to it was changed or cut off.
        """
        with self._database.reading() as connection:
            return chain.head(connection)

    def event_hash(self, sequence: int) -> str | None:
        """Return the hash of the event with this sequence number, to compare with a head that was kept."""
        query = sa.select(schema.events.c.hash).where(schema.events.c.sequence == sequence)
        with self._database.reading() as connection:
            return connection.scalar(query)

    def verify_chain(self) -> int | None:
        """Check every event's hash; return the sequence number of the first broken event, or None."""
        with self._database.reading() as connection:
            return chain.first_broken(connection)

    def verify(self) -> str:
        """Check the chain and all that it commits to; return what does not fit in one sentence, empty if all fits."""
        with self._database.reading(at_one_moment=True) as connection:
            return check.first_problem(connection)

    def status_counts(self) -> dict[Status, tuple[int, datetime]]:
        """Return how many requests there are in each state that has any, and since when the oldest is in it."""
        oldest = sa.func.min(_requests.c.updated_at, type_=_requests.c.updated_at.type)
        query = sa.select(_requests.c.status, sa.func.count().label("num"), oldest.label("oldest"))
        with self._database.reading() as connection:
            rows = connection.execute(query.group_by(_requests.c.status))
            return {Status(row.status): (row.num, row.oldest) for row in rows}

    def forgotten_clients(self) -> frozenset[str]:
        """Return the clients that were forgotten whole."""
        query = _select_forgotten(_requests.c.client_id).where(_requests.c.num_samples == 0)
        with self._database.reading() as connection:
            return frozenset(connection.scalars(query))

    def num_forgotten_samples(self) -> dict[str, int]:
        """Return how many samples of each client its deletions named; one that two deletions name counts twice."""
        query = _select_forgotten(_requests.c.client_id, sa.func.sum(_requests.c.num_samples).label("num"))
        query = query.where(_requests.c.num_samples > 0).group_by(_requests.c.client_id)
        with self._database.reading() as connection:
            return {row.client_id: int(row.num) for row in connection.execute(query)}

    def record_refusals(self, refusals: Iterable[Refusal]) -> None:
        """Write calls down that were refused; text of strangers is cut and made printable."""
        rows = [
            {
                "at": item.at,
                "caller": as_line(item.caller, 200),
                "role": as_line(item.role, 20),
                "call": as_line(item.call, 100),
                "reason": as_line(item.reason, 2000),
                "detail": as_json(item.detail),
            }
            for item in refusals
        ]
        if rows:
            with self._database.writing() as connection:
                insert = sa.insert(schema.refusals).returning(*schema.refusals.c)
                written = connection.execute(insert, rows).all()
                written = sorted(written, key=lambda row: row.sequence)
                seals.seal_rows(connection, schema.refusals, written, rows[-1]["at"])

    def refusals(self, *, after: int = 0, limit: int = 1000, caller: str | None = None) -> list[Refusal]:
        """Return the newest `limit` refusals with a sequence number above `after`, in order; of one caller if given."""
        table = schema.refusals
        query = sa.select(table).where(table.c.sequence > after)
        if caller is not None:
            query = query.where(table.c.caller == caller)
        query = query.order_by(table.c.sequence.desc()).limit(limit)
        with self._database.reading() as connection:
            return [Refusal(**row._mapping) for row in reversed(connection.execute(query).all())]


def _select_forgotten(*columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select columns of the requests of clients that were carried out."""
    query: sa.Select[Any] = sa.select(*columns)
    return query.join(schema.exclusions, schema.exclusions.c.request_number == _requests.c.number).where(
        _requests.c.client_id.is_not(None)
    )
