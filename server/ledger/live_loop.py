"""What the live loop writes, with the token of its fence: moves, clients, rounds, and facts of the federation."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from server.ledger import chain, schema, seals, statements
from server.ledger.part import Part, all_pages
from server.ledger.records import ClientRecord, RoundRecord, as_json, request_number, round_of
from unlearning.errors import IllegalMove
from unlearning.requests import LEGAL_MOVES, DeletionRequest, Status


class LiveLoopPart(Part):
    """The fence, and what only its holder writes."""

    def acquire_fence(self, holder: str, *, now: datetime) -> int:
        """Become the one live loop; the token returned is valid until someone acquires the next."""
        fence = schema.fence
        with self._database.writing() as connection:
            token: int | None = connection.scalar(
                sa.update(fence)
                .values(token=fence.c.token + 1, holder=holder, acquired_at=now)
                .returning(fence.c.token)
            )
            seals.seal_whole(connection, fence, now)
        assert token is not None, "the first migration creates the fence's row"
        return token

    def check_fence(self, token: int) -> None:
        """Return whether `token` is still the newest.

        Raises:
            Fenced: it is not.
        """
        with self._database.reading() as connection:
            statements.fence_holder(connection, token)

    def move(
        self,
        request_id: str,
        to: Status,
        *,
        token: int,
        now: datetime,
        reason: str = "",
        retryable: bool = False,
        detail: Mapping[str, Any] | None = None,
        result: Mapping[str, Any] | None = None,
    ) -> DeletionRequest:
        """Move a request to its next state; where it is already there, nothing changes.

        recovering → verifying also excludes the target for good, in the same transaction;
        the move to unlearning counts an attempt. `retryable` goes with failed, `result` with completed.

        Raises:
            Fenced: the token is not the newest; nothing was changed.
            RequestNotFound: there is no such request.
            IllegalMove: the request's state does not allow this move, or it is held.
        """
        with self._database.writing() as connection:
            holder = statements.fence_holder(connection, token)
            request = statements.get(connection, request_id)
            if request.status is to:
                return request
            if to not in LEGAL_MOVES[request.status]:
                raise IllegalMove(f"Request {request.id} is {request.status}; it may not become {to}.")
            if to in (Status.SCHEDULED, Status.UNLEARNING):
                statements.refuse_if_held(request)
            changes: dict[str, Any] = {"retryable": retryable and to is Status.FAILED}
            if to is Status.UNLEARNING:
                changes["attempts"] = request.attempts + 1
            if (request.status, to) == (Status.RECOVERING, Status.VERIFYING):
                statements.exclude(connection, request, now)
            if result is not None:
                changes["result"] = as_json(result)
            return statements.write_move(
                connection, request, to, actor=holder, now=now, reason=reason, detail=detail, **changes
            )

    def note(
        self,
        request_id: str,
        kind: str,
        *,
        token: int,
        now: datetime,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Record an event of a request that is not a move, such as `waiting` for a client.

        Raises:
            Fenced: the token is not the newest.
            RequestNotFound: there is no such request.
        """
        with self._database.writing() as connection:
            holder = statements.fence_holder(connection, token)
            number = request_number(statements.get(connection, request_id).id)
            chain.append(connection, number, kind, actor=holder, detail=detail, now=now)

    def register_clients(self, records: Iterable[ClientRecord], *, token: int, now: datetime) -> None:
        """Add clients to the roster or bring them up to date; clients not named stay as they are.

        `last_seen` becomes the record's (`now` where it has none) for a client that is online, and is kept for one that
        is not.

        Raises:
            Fenced: the token is not the newest.
        """
        table = schema.clients
        with self._database.writing() as connection:
            statements.fence_holder(connection, token)
            known = set(connection.scalars(sa.select(table.c.client_id)))
            for record in records:
                values: dict[str, Any] = {
                    "node_name": record.node_name,
                    "public_key_hex": record.public_key_hex,
                    "online": record.online,
                }
                if record.online:
                    values["last_seen"] = record.last_seen or now
                elif record.client_id not in known:
                    values["last_seen"] = record.last_seen
                if record.client_id in known:
                    connection.execute(
                        sa.update(table).where(table.c.client_id == record.client_id).values(values)
                    )
                else:
                    connection.execute(sa.insert(table).values({"client_id": record.client_id, **values}))
                    known.add(record.client_id)

    def clients(self) -> list[ClientRecord]:
        """Return the roster, in order of the ids."""
        table = schema.clients
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(table).order_by(table.c.client_id)).all()
        return [ClientRecord(**row._mapping) for row in rows]

    def has_client(self, client_id: str) -> bool:
        """Return whether the client is in the roster."""
        query = sa.select(schema.clients.c.client_id).where(schema.clients.c.client_id == client_id)
        with self._database.reading() as connection:
            return connection.scalar(query) is not None

    def record_round(self, record: RoundRecord, *, token: int) -> RoundRecord:
        """Write a round down; the record returned has its sequence number.

        Raises:
            Fenced: the token is not the newest.
        """
        with self._database.writing() as connection:
            statements.fence_holder(connection, token)
            row = connection.execute(
                sa.insert(schema.rounds)
                .values(
                    round=record.round,
                    kind=record.kind,
                    request_ids=list(record.request_ids),
                    metrics=as_json(record.metrics),
                    at=record.at,
                )
                .returning(*schema.rounds.c)
            ).one()
            seals.seal_rows(connection, schema.rounds, [row], record.at)
        return round_of(row)

    def rounds(self, *, after: int = 0, limit: int = 1000) -> list[RoundRecord]:
        """Return the rounds with a sequence number above `after`, in order."""
        table = schema.rounds
        query = sa.select(table).where(table.c.sequence > after)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(table.c.sequence).limit(limit))
            return [round_of(row) for row in rows]

    def all_rounds(self, *, after: int = 0) -> Iterator[RoundRecord]:
        """Yield all rounds with a sequence number above `after`, in order, read page by page."""
        return all_pages(lambda number, limit: self.rounds(after=number, limit=limit), after=after)

    def set_facts(self, facts: Mapping[str, Any], *, token: int, now: datetime) -> None:
        """Write facts down by their keys, over what they were; other keys stay as they are.

        Raises:
            Fenced: the token is not the newest.
        """
        table = schema.federation_facts
        with self._database.writing() as connection:
            statements.fence_holder(connection, token)
            for key, value in facts.items():
                values = {"value": as_json(value), "at": now}
                known = connection.execute(sa.update(table).where(table.c.key == key).values(values))
                if known.rowcount == 0:
                    connection.execute(sa.insert(table).values(key=key, **values))
            seals.seal_whole(connection, table, now)

    def facts(self) -> dict[str, Any]:
        """Return the newest value of every fact that a ServerApp wrote down; empty before the first start."""
        table = schema.federation_facts
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(table.c.key, table.c.value).order_by(table.c.key))
            return {row.key: row.value for row in rows}
