"""The events: what happened, chained by hashes."""

from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from server.ledger import chain, check, schema, texts
from server.ledger.database import Database, all_pages
from server.ledger.records import Event, request_number


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a ledger, and their chain."""

    database: Database

    def page(self, request_id: str | None = None, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events with a sequence number above `after`, in order; of one request where given."""
        query = sa.select(schema.events).where(schema.events.c.sequence > after)
        if request_id is not None:
            query = query.where(schema.events.c.request_number == request_number(request_id))
        query = query.order_by(schema.events.c.sequence).limit(limit)
        with self.database.reading() as connection:
            return texts.events_of(connection, connection.execute(query).all())

    def all(self, request_id: str | None = None, *, after: int = 0) -> Iterator[Event]:
        """Yield all events with a sequence number above `after`, in order, read page by page."""
        return all_pages(lambda number, limit: self.page(request_id, after=number, limit=limit), after=after)

    def of_kind(self, kind: str, *, after: int = 0) -> list[Event]:
        """Return the events of a kind with a sequence number above `after`, in order."""
        columns = schema.events.c
        query = sa.select(schema.events).where(columns.sequence > after, columns.kind == kind)
        with self.database.reading() as connection:
            return texts.events_of(connection, connection.execute(query.order_by(columns.sequence)).all())

    def last_sequence(self) -> int:
        """Return the sequence number of the newest event; 0 where there is none."""
        return self.newest()[0]

    def last_of_requests(self) -> int:
        """Return the sequence number of the newest event of a request; 0 where there is none."""
        of_requests = sa.select(schema.events.c.sequence).where(schema.events.c.request_number.is_not(None))
        newest = of_requests.order_by(schema.events.c.sequence.desc()).limit(1)
        with self.database.reading() as connection:
            return connection.scalar(newest) or 0

    def newest(self) -> tuple[int, int]:
        """Return the sequence numbers of the newest event and the newest round, 0 where there is none: it is cheap."""
        events = sa.select(sa.func.max(schema.events.c.sequence)).scalar_subquery()
        rounds = sa.select(sa.func.max(schema.rounds.c.sequence)).scalar_subquery()
        with self.database.reading() as connection:
            event, round_ = connection.execute(sa.select(events, rounds)).one()
        return event or 0, round_ or 0

    def head(self) -> tuple[int, str]:
        """Return sequence number and hash of the newest event; 0 and 64 zeros where there is none.

        Kept elsewhere, it proves later that no event up to it was changed or cut off.
        """
        with self.database.reading() as connection:
            return chain.head(connection)

    def hash_of(self, sequence: int) -> str | None:
        """Return the hash of the event with this sequence number, to compare with a head that was kept."""
        query = sa.select(schema.events.c.hash).where(schema.events.c.sequence == sequence)
        with self.database.reading() as connection:
            return connection.scalar(query)

    def verify_chain(self) -> int | None:
        """Check every event's hash; return the sequence number of the first broken event, or None."""
        with self.database.reading() as connection:
            return chain.first_broken(connection)

    def verify(self) -> str:
        """Check the chain and all that it commits to; return what does not fit in one sentence, empty if all fits."""
        with self.database.reading(at_one_moment=True) as connection:
            return check.first_problem(connection)
