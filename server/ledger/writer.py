"""What the ServerApp writes, with the fencing token that makes one process the only writer."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from server.ledger import chain, row_seals, schema, statements
from server.ledger.database import Database
from server.ledger.records import ClientRecord, RoundRecord, as_json, columns_of, request_number, round_of
from unlearning.errors import Fenced, IllegalMove
from unlearning.requests import LEGAL_MOVES, DeletionRequest, Outcome, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerWriter:
    """Moves, clients, rounds, and facts of the federation, as the holder of the fence writes them.

    Every method raises Fenced where a newer server process has taken over; then nothing was changed.
    now: the clock.
    """

    database: Database
    token: int
    now: Callable[[], datetime]

    def check_fence(self) -> None:
        """Refuse to go on where a newer process has taken over."""
        with self.database.reading() as connection:
            self._holder(connection)

    def move(
        self,
        request_id: str,
        to: Status,
        *,
        reason: str = "",
        retryable: bool = False,
        detail: Mapping[str, Any] | None = None,
        result: Mapping[str, Any] | None = None,
        outcome: Outcome | None = None,
    ) -> DeletionRequest:
        """Move a request to its next state; where it is already there, nothing changes.

        recovering → verifying also excludes the target permanently, in the same transaction, if it is not yet;
        the move to unlearning counts an attempt. `retryable` goes with failed, `result` and `outcome` with
        completed.

        Raises:
            RequestNotFound: there is no such request.
            IllegalMove: the request's state does not allow this move, it is held, or too few people have accepted it.
        """
        now = self.now()
        with self._writing() as (connection, holder):
            request = statements.get(connection, request_id)
            if request.status is to:
                return request
            if to not in LEGAL_MOVES[request.status]:
                raise IllegalMove(
                    f"Request {request.id} is {request.status}; it may not become {to}.", code="no-such-move"
                )
            if to in (Status.SCHEDULED, Status.UNLEARNING):
                statements.refuse_if_held(request)
            if to in (Status.ACCEPTED, Status.SCHEDULED):
                statements.refuse_if_undecided(connection, request)
            changes: dict[str, Any] = {"retryable": retryable and to is Status.FAILED}
            if to is Status.UNLEARNING:
                changes["attempts"] = request.attempts + 1
            is_committed = (request.status, to) == (Status.RECOVERING, Status.VERIFYING)
            if is_committed and not statements.is_excluded(connection, request):
                excluded = {"request_number": request_number(request.id), "at": now}
                connection.execute(sa.insert(schema.exclusions).values(excluded))
            if result is not None:
                changes["result"] = as_json(result)
            if outcome is not None:
                changes["outcome"] = str(outcome)
            return statements.write_move(
                connection, request, to, actor=holder, now=now, reason=reason, detail=detail, **changes
            )

    def note(self, request_id: str, kind: str, detail: Mapping[str, Any] | None = None) -> None:
        """Record an event of a request that is not a move, such as `waiting` for a client.

        Raises:
            RequestNotFound: there is no such request.
        """
        with self._writing() as (connection, holder):
            number = request_number(statements.get(connection, request_id).id)
            chain.append(connection, number, kind, actor=holder, detail=detail, now=self.now())

    def register_clients(self, records: Iterable[ClientRecord]) -> None:
        """Add clients to the roster or bring them up to date; clients not named stay as they are.

        `last_seen` becomes the record's (now where it has none) for a client that is online, and is kept for one that
        is not.
        """
        table, now = schema.clients, self.now()
        with self._writing() as (connection, _):
            known = set(connection.scalars(sa.select(table.c.client_id)))
            for record in records:
                values = columns_of(table, record)
                if record.online:
                    values["last_seen"] = record.last_seen or now
                if record.client_id not in known:
                    connection.execute(sa.insert(table).values(values))
                    known.add(record.client_id)
                    continue
                if not record.online:
                    del values["last_seen"]
                connection.execute(
                    sa.update(table).where(table.c.client_id == record.client_id).values(values)
                )

    def record_round(self, record: RoundRecord) -> RoundRecord:
        """Write a round down; the record returned has its sequence number."""
        values = columns_of(schema.rounds, record)
        del values["sequence"]
        with self._writing() as (connection, _):
            insert = sa.insert(schema.rounds).values(values).returning(*schema.rounds.c)
            row = connection.execute(insert).one()
            row_seals.seal_rows(connection, schema.rounds, [row], record.at)
        return round_of(row)

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Write facts down by their keys, over what they were; other keys stay as they are."""
        table, now = schema.federation_facts, self.now()
        with self._writing() as (connection, _):
            for key, value in facts.items():
                values = {"value": as_json(value), "at": now}
                known = connection.execute(sa.update(table).where(table.c.key == key).values(values))
                if known.rowcount == 0:
                    connection.execute(sa.insert(table).values(key=key, **values))
            row_seals.seal_whole(connection, table, now)

    @contextmanager
    def _writing(self) -> Iterator[tuple[sa.Connection, str]]:
        """Open a transaction that writes as the holder of the fence, whose name it gives."""
        with self.database.writing() as connection:
            yield connection, self._holder(connection)

    def _holder(self, connection: sa.Connection) -> str:
        row = connection.execute(sa.select(schema.fence)).one()
        if row.token != self.token:
            raise Fenced(
                f"Another server process has taken over (token {row.token}, held by {row.holder!r}; "
                f"this process has {self.token}). This one must stop; nothing was changed."
            )
        return str(row.holder)
