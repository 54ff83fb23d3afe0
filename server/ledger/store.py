"""The ledger: what was asked, by whom, where it stands, and what may never be trained on again.

Two kinds of callers write: people, through the deletion service (`submit`, `cancel`, `retry`), and
the live loop, which shows the token of the fence with every write. A loop that was thought dead and
comes back shows an old token, and is stopped by `Fenced` before it changes anything.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa

from server.ledger import chain, check, counts, samples, schema, seals, statements, takeover
from server.ledger.database import Database
from server.ledger.records import (
    ACCEPTED_LOSS,
    SUBMITTED,
    ClientRecord,
    Event,
    Quota,
    Refusal,
    RoundRecord,
    as_json,
    event_of,
    no_such_request,
    printable,
    request_number,
    request_of,
    round_of,
)
from unlearning.errors import ConflictingRequest, IllegalMove
from unlearning.pseudonyms import SubjectKeys
from unlearning.requests import (
    LEGAL_MOVES,
    DeletionRequest,
    Exclusions,
    Status,
    Target,
)

_requests = schema.requests
_PAGE_SIZE = 1000
_Numbered = TypeVar("_Numbered", Event, RoundRecord)


class Ledger:
    """The durable record that the deletion service, the live loop and the supervisor share.

    What a method has written is on disk when it returns. Times are timezone-aware and kept as UTC.
    One object serves several threads; several processes may open the same database.
    """

    def __init__(self, database: Database, keys: SubjectKeys | None = None) -> None:
        self._database = database
        self._keys = keys

    @classmethod
    def open(cls, url: str, keys: SubjectKeys | None = None) -> "Ledger":
        """Open, and where needed create or migrate, the ledger at a SQLite or PostgreSQL URL.

        keys: of the federation (`server.state_directory.subject_key`), for processes that file requests or carry
            them out: sample ids are then kept as keyed hashes, also those that stand here in clear. Without, they are
            kept as given.

        Raises:
            ConfigurationError: the URL is not one of a durable SQLite or PostgreSQL database, or the ledger's
                ids were hashed with another key.
            LedgerUnavailable: the database cannot be reached or written.
        """
        database = Database(url)
        try:
            database.migrate()
            if keys is not None:
                takeover.key_all(database, keys)
        except BaseException:
            database.close()
            raise
        return cls(database, keys)

    @property
    def keys(self) -> SubjectKeys | None:
        """The keys of sample ids, if the ledger was opened with them."""
        return self._keys

    def keyed(self, target: Target) -> Target:
        """`target` as this ledger names samples."""
        return target if self._keys is None else self._keys.target(target)

    def close(self) -> None:
        """Close every connection."""
        self._database.close()

    # Requests, as people see them

    def submit(
        self,
        target: Target,
        *,
        method: str,
        parameters: Mapping[str, Any],
        submitted_by: str,
        submitted_role: str | None = None,
        idempotency_key: str,
        now: datetime,
        max_open: int | None = None,
        quota: Quota | None = None,
    ) -> DeletionRequest:
        """Write a new request down, or return the one that this key has already made.

        max_open: how many open requests `submitted_by` in this role may have, this one included.
        quota: how much it may file within 24 hours.

        Raises:
            ConflictingRequest: the key made another request, or one for this target is open.
            LimitExceeded: `submitted_by` has too many open requests, or is over its quota.
        """
        target, parameters = self.keyed(target), as_json(parameters)
        listed = samples.values_of(target.sample_ids)
        with self._database.writing() as connection:
            known = statements.find(connection, idempotency_key)
            if known is not None:
                number = request_number(known.id)
                asked = (known.target, known.method, known.parameters)
                if asked == (target.without_ids(), method, parameters) and samples.are_of(
                    connection, number, listed
                ):
                    return known
                raise ConflictingRequest(
                    f"The idempotency key belongs to request {known.id} "
                    f"({known.target.describe()}, {known.method}), which asks for something else. "
                    "Use a new key."
                )
            statements.refuse_if_open(connection, target.key)
            if max_open is not None:
                statements.refuse_if_too_many_open(connection, submitted_by, submitted_role, max_open)
            if quota is not None:
                statements.refuse_if_over_quota(
                    connection, submitted_by, submitted_role, target.num_samples, quota, now
                )
            row = connection.execute(
                sa.insert(_requests)
                .values(
                    idempotency_key=idempotency_key,
                    target_key=target.key,
                    target=_without_samples(target),
                    client_id=target.client_id,
                    method=method,
                    parameters=parameters,
                    submitted_by=submitted_by,
                    submitted_role=submitted_role,
                    status=str(Status.RECEIVED),
                    reason="",
                    retryable=False,
                    attempts=0,
                    created_at=now,
                    updated_at=now,
                    result={},
                    num_samples=target.num_samples,
                )
                .returning(*_requests.c)
            ).one()
            if target.sample_ids:
                samples.insert(connection, row.number, listed)
            last_round = connection.scalar(sa.select(sa.func.max(schema.rounds.c.sequence))) or 0
            detail = {
                "last_round_sequence": last_round,  # where watching the rounds begins
                **statements.sealed(connection, row),
            }
            statements.append_event(
                connection, row.number, SUBMITTED, actor=submitted_by, detail=detail, now=now
            )
        return request_of(row)

    def get(self, request_id: str) -> DeletionRequest:
        """The request with this id.

        Raises:
            RequestNotFound: there is none.
        """
        with self._database.reading() as connection:
            return statements.get(connection, request_id)

    def client_of(self, request_id: str) -> str | None:
        """The client that a request is about, None where it is a class; reads nothing else of it.

        Raises:
            RequestNotFound: there is none with this id.
        """
        query = sa.select(_requests.c.client_id).where(_requests.c.number == request_number(request_id))
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise no_such_request(request_id)
        client_id: str | None = row.client_id
        return client_id

    def find(self, idempotency_key: str) -> DeletionRequest | None:
        """The request that this idempotency key made, if any."""
        with self._database.reading() as connection:
            return statements.find(connection, idempotency_key)

    def target_of(self, request: DeletionRequest) -> Target:
        """What a request asks to forget, with the ids of its samples; requests as such are read without them.

        Raises:
            IllegalMove: it has given its ids back, because it is over.
        """
        with self._database.reading() as connection:
            target = samples.loaded(connection, request_number(request.id), request.target, self._keys)
        if target.num_samples and not target.sample_ids:
            raise IllegalMove(
                f"Request {request.id} is {request.status}, and the ids of its samples are erased. File it anew."
            )
        return target

    def list_requests(
        self,
        *,
        statuses: Iterable[Status] | None = None,
        client_id: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> list[DeletionRequest]:
        """The requests in order of arrival, of these statuses and this client where given, without sample ids.

        after, limit: those after the request of a number, and how many at most.
        """
        query = sa.select(_requests).where(_requests.c.number > after).order_by(_requests.c.number)
        if limit is not None:
            query = query.limit(limit)
        if statuses is not None:
            query = query.where(_requests.c.status.in_([str(status) for status in statuses]))
        if client_id is not None:
            query = query.where(_requests.c.client_id == client_id)
        with self._database.reading() as connection:
            return [request_of(row) for row in connection.execute(query)]

    def cancel(self, request_id: str, *, by: str, now: datetime) -> DeletionRequest:
        """Withdraw a request that has not begun; cancelling it again changes nothing.

        Raises:
            RequestNotFound: there is none with this id.
            IllegalMove: it has begun or is over.
        """
        with self._database.writing() as connection:
            request = statements.get(connection, request_id)
            if request.status is Status.CANCELLED:
                return request
            if Status.CANCELLED not in LEGAL_MOVES[request.status]:
                raise IllegalMove(
                    f"Request {request.id} is {request.status}; "
                    "only a received or scheduled request can be cancelled."
                )
            return statements.write_move(connection, request, Status.CANCELLED, actor=by, now=now)

    def retry(
        self, request_id: str, *, by: str, now: datetime, accept_score_loss: float = 0.0
    ) -> DeletionRequest:
        """Schedule a failed request again, with its attempts counted from zero.

        accept_score_loss: this time the model may lose so many points of score, whatever the settings allow; 0: no more
        than they do. The event says who accepted it.

        Raises:
            RequestNotFound: there is none with this id.
            IllegalMove: it has not failed, or trying again cannot help.
            ConflictingRequest: another request for the same target is open.
        """
        with self._database.writing() as connection:
            request = statements.get(connection, request_id)
            if request.status is not Status.FAILED:
                raise IllegalMove(
                    f"Request {request.id} is {request.status}; only a failed request can be retried."
                )
            if not request.retryable:
                raise IllegalMove(
                    f"Request {request.id} failed for good: {request.reason or 'no reason given'} "
                    "File a new request with another method or other parameters."
                )
            statements.refuse_if_open(connection, request.target.key)
            detail: dict[str, Any] = {}
            if accept_score_loss:
                text = f"{by} accepts that the model loses up to {accept_score_loss:g} points of score"
                detail = {ACCEPTED_LOSS: accept_score_loss, "text": text}
            return statements.write_move(
                connection, request, Status.SCHEDULED, actor=by, now=now, detail=detail, attempts=0
            )

    def accepted_loss(self, request_id: str) -> tuple[float, str]:
        """How many points of score the request's last retry lets the model lose, and who accepted it; 0 for none."""
        found = (0.0, "")
        for event in self.all_events(request_id):
            if event.from_status is Status.FAILED:
                found = (float(event.detail.get(ACCEPTED_LOSS, 0.0)), event.actor)
        return found

    def events(self, request_id: str | None = None, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """The events with a sequence number above `after`, in order; of one request where given."""
        query = sa.select(schema.events).where(schema.events.c.sequence > after)
        if request_id is not None:
            query = query.where(schema.events.c.request_number == request_number(request_id))
        query = query.order_by(schema.events.c.sequence).limit(limit)
        with self._database.reading() as connection:
            return [event_of(row) for row in connection.execute(query)]

    def all_events(self, request_id: str | None = None, *, after: int = 0) -> Iterator[Event]:
        """All events with a sequence number above `after`, in order, read page by page."""
        return _all_pages(lambda number: self.events(request_id, after=number, limit=_PAGE_SIZE), after=after)

    def last_event_sequence(self) -> int:
        """The sequence number of the newest event; 0 where there is none."""
        with self._database.reading() as connection:
            newest = connection.scalar(sa.select(sa.func.max(schema.events.c.sequence)))
        return newest or 0

    def status_counts(self) -> dict[Status, tuple[int, datetime]]:
        """How many requests there are in each state that has any, and since when the oldest is in it."""
        with self._database.reading() as connection:
            return counts.by_status(connection)

    def forgotten_clients(self) -> frozenset[str]:
        """The clients that were forgotten whole."""
        with self._database.reading() as connection:
            return counts.forgotten_clients(connection)

    def num_forgotten_samples(self) -> dict[str, int]:
        """How many samples of each client its deletions named; one that two deletions name counts twice."""
        with self._database.reading() as connection:
            return counts.forgotten_samples(connection)

    def last_request_event_sequence(self) -> int:
        """The sequence number of the newest event of a request; 0 where there is none."""
        of_requests = sa.select(schema.events.c.sequence).where(schema.events.c.request_number.is_not(None))
        newest = of_requests.order_by(schema.events.c.sequence.desc()).limit(1)
        with self._database.reading() as connection:
            return connection.scalar(newest) or 0

    def exclusions(self, *, concerning: Target | None = None) -> Exclusions:
        """Everything that has been forgotten for good, with all sample ids; or of it, what can concern one target."""
        query = (
            sa.select(_requests)
            .join(schema.exclusions, schema.exclusions.c.request_number == _requests.c.number)
            .order_by(_requests.c.number)
        )
        if concerning is not None:  # a ledger may hold thousands; a class concerns everybody
            query = query.where(
                sa.or_(_requests.c.client_id == concerning.client_id, _requests.c.client_id.is_(None))
            )
        with self._database.reading() as connection:
            targets = [
                samples.loaded(connection, row.number, request_of(row).target, self._keys)
                for row in connection.execute(query).all()
            ]
        return Exclusions().including(targets)

    def newest(self) -> tuple[int, int]:
        """The sequence numbers of the newest event and the newest round, 0 where there is none: cheap to ask often."""
        events = sa.select(sa.func.max(schema.events.c.sequence)).scalar_subquery()
        rounds = sa.select(sa.func.max(schema.rounds.c.sequence)).scalar_subquery()
        with self._database.reading() as connection:
            event, round_ = connection.execute(sa.select(events, rounds)).one()
        return event or 0, round_ or 0

    def event_head(self) -> tuple[int, str]:
        """Sequence number and hash of the newest event; 0 and 64 zeros where there is none.

        Kept elsewhere, it proves later that no event up to it was changed or cut off.
        """
        with self._database.reading() as connection:
            return chain.head(connection)

    def event_hash(self, sequence: int) -> str | None:
        """The hash of the event with this sequence number, to compare with a head that was kept."""
        query = sa.select(schema.events.c.hash).where(schema.events.c.sequence == sequence)
        with self._database.reading() as connection:
            return connection.scalar(query)

    def verify_chain(self) -> int | None:
        """Check every event's hash: the sequence number of the first broken event, or None."""
        with self._database.reading() as connection:
            return chain.first_broken(connection)

    def verify(self) -> str:
        """Check the chain and all that it commits to: what does not fit, in one sentence; empty where all fits."""
        with self._database.reading(at_one_moment=True) as connection:
            return check.first_problem(connection)

    # What was refused

    def record_refusals(self, refusals: Iterable[Refusal]) -> None:
        """Write calls down that were refused; text of strangers is cut and made printable."""
        rows = [
            {
                "at": item.at,
                "caller": printable(item.caller, 200),
                "role": printable(item.role, 20),
                "call": printable(item.call, 100),
                "reason": printable(item.reason, 2000),
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
        """The newest `limit` refusals with a sequence number above `after`, in order; of one caller if given."""
        table = schema.refusals
        query = sa.select(table).where(table.c.sequence > after)
        if caller is not None:
            query = query.where(table.c.caller == caller)
        query = query.order_by(table.c.sequence.desc()).limit(limit)
        with self._database.reading() as connection:
            return [Refusal(**row._mapping) for row in reversed(connection.execute(query).all())]

    # What the door must know of the federation

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
        """The newest value of every fact that a ServerApp wrote down; empty before the first start."""
        table = schema.federation_facts
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(table.c.key, table.c.value).order_by(table.c.key))
            return {row.key: row.value for row in rows}

    # The live loop

    def acquire_fence(self, holder: str, *, now: datetime) -> int:
        """Become the one live loop: the token returned is valid until someone acquires the next."""
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
        """Whether `token` is still the newest.

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
        unlearning → scheduled counts an attempt. `retryable` goes with failed, `result` with completed.

        Raises:
            Fenced: the token is not the newest; nothing was changed.
            RequestNotFound: there is no such request.
            IllegalMove: the request's state does not allow this move.
        """
        with self._database.writing() as connection:
            holder = statements.fence_holder(connection, token)
            request = statements.get(connection, request_id)
            if request.status is to:
                return request
            if to not in LEGAL_MOVES[request.status]:
                raise IllegalMove(f"Request {request.id} is {request.status}; it may not become {to}.")
            changes: dict[str, Any] = {"retryable": retryable and to is Status.FAILED}
            if (request.status, to) == (Status.UNLEARNING, Status.SCHEDULED):
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
            statements.append_event(connection, number, kind, actor=holder, detail=detail, now=now)

    def register_clients(self, records: Iterable[ClientRecord], *, token: int, now: datetime) -> None:
        """Add clients to the roster or bring them up to date; clients not named stay as they are.

        `last_seen` becomes `now` for a client that is online, and is kept for one that is not.

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
                    values["last_seen"] = now
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
        """The roster, in order of the ids."""
        table = schema.clients
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(table).order_by(table.c.client_id)).all()
        return [ClientRecord(**row._mapping) for row in rows]

    def has_client(self, client_id: str) -> bool:
        """Whether the client is in the roster."""
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
        """The rounds with a sequence number above `after`, in order."""
        table = schema.rounds
        query = sa.select(table).where(table.c.sequence > after)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(table.c.sequence).limit(limit))
            return [round_of(row) for row in rows]

    def all_rounds(self, *, after: int = 0) -> Iterator[RoundRecord]:
        """All rounds with a sequence number above `after`, in order, read page by page."""
        return _all_pages(lambda number: self.rounds(after=number, limit=_PAGE_SIZE), after=after)


def _without_samples(target: Target) -> dict[str, Any]:
    """The target as its own column has it."""
    return {
        "granularity": str(target.granularity),
        "client_id": target.client_id,
        "class_label": target.class_label,
    }


def _all_pages(read: Callable[[int], list[_Numbered]], *, after: int) -> Iterator[_Numbered]:
    """What `read` gives after one number and another; a page that is not full is the last one."""
    while True:
        page = read(after)
        yield from page
        if len(page) < _PAGE_SIZE:
            return
        after = page[-1].sequence
