"""The requests as they are filed and read."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa

from server.ledger import chain, request_search, row_seals, schema, statements, texts
from server.ledger.database import Database
from server.ledger.records import (
    ACCEPTED_LOSS,
    AMENDED,
    ATTEMPTS_BEFORE,
    DAY,
    HELD,
    RECOMMENDED,
    SUBMITTED,
    TARGET_FIELDS,
    UNBOUNDED,
    Allowance,
    LastRetry,
    LimitExceeded,
    NewRequest,
    as_json,
    columns_of,
    no_such_request,
    request_number,
)
from server.ledger.request_filter import RequestFilter, RequestPage
from server.ledger.request_search import Searched
from server.ledger.texts import Kind
from unlearning.errors import ConflictingRequest, IllegalMove
from unlearning.gdpr import SOON, Particulars
from unlearning.pseudonyms import SubjectKeys
from unlearning.requests import (
    ANSWERED_STATUSES,
    OPEN_STATUSES,
    DeletionRequest,
    Granularity,
    Outcome,
    Status,
    Target,
    hash_of_text,
    list_ids,
)

_requests, _samples = schema.requests, schema.request_samples
_NEWEST = 1000  # deletions that say how methods do here: a ledger may hold a hundred thousand


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a ledger: what they ask for, and their submitters.

    keys: those of sample ids, if the ledger was opened with them. searched: what words are looked for in.
    """

    database: Database
    keys: SubjectKeys | None
    searched: Searched

    def submit(self, new: NewRequest, *, now: datetime, allowance: Allowance = UNBOUNDED) -> DeletionRequest:
        """Write a new request down, or return the one that its submitter has already filed under its key.

        Raises:
            ConflictingRequest: the submitter's key made another request.
            LimitExceeded: the submitter has too many open requests, or is over its quota.
            InvalidRequest: the days that were given cannot be.
        """
        days = new.particulars.dates(now)
        new = replace(
            new, target=statements.key_target(self.keys, new.target), parameters=as_json(new.parameters)
        )
        listed = list_ids(new.target.sample_ids)
        with self.database.writing() as connection:
            known = _find(connection, new.idempotency_key, new.submitted_by, new.submitted_role)
            if known is not None:
                _refuse_another(connection, known, new, listed)
                return known
            _refuse_if_over(connection, new, allowance, now)
            detail = {"reason": f"{new.method}: {new.why}", RECOMMENDED: True} if new.why else {}
            if new.replays:
                detail["text"] = f"filed again by a restore; it was {new.replays}"
            return file_request(connection, new, days, now, listed, by=new.submitted_by, detail=detail)

    def get(self, request_id: str) -> DeletionRequest:
        """Return the request with this id.

        Raises:
            RequestNotFound: there is none.
        """
        with self.database.reading() as connection:
            return statements.get(connection, request_id)

    def client_of(self, request_id: str) -> str | None:
        """Return the client that a request is about, None where it is a class; reads nothing else of it.

        Raises:
            RequestNotFound: there is none with this id.
        """
        query = sa.select(_requests.c.client_id).where(_requests.c.number == request_number(request_id))
        with self.database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise no_such_request(request_id)
        client_id: str | None = row.client_id
        return client_id

    def find(self, idempotency_key: str, by: str, role: str | None = None) -> DeletionRequest | None:
        """Return the request that the submitter of this name and role filed under this key, if any."""
        with self.database.reading() as connection:
            return _find(connection, idempotency_key, by, role)

    def replacement_of(self, request: DeletionRequest) -> DeletionRequest:
        """Return what asks for the same in this request's place now, under its key; itself where nothing does."""
        newest = request
        while newest.replaced_by:
            newest = self.get(newest.replaced_by)
        return replace(newest, idempotency_key=request.idempotency_key)

    def target_of(self, request: DeletionRequest) -> Target:
        """Return what a request asks to forget, with the ids of its samples; requests as such are read without them.

        Raises:
            IllegalMove: its ids are erased, because it has ended without a deletion.
        """
        with self.database.reading() as connection:
            target = statements.load_target(connection, request_number(request.id), request.target, self.keys)
        if target.num_samples and not target.sample_ids:
            raise IllegalMove(
                f"Request {request.id} is {request.status}, and the ids of its samples are erased. File it again.",
                code="ids-erased",
            )
        return target

    def with_targets(self, requests: Iterable[DeletionRequest]) -> list[tuple[DeletionRequest, Target]]:
        """Return requests with what they ask to forget; without those whose ids are erased.

        A request may have ended without a deletion since it was read.
        """
        found = []
        for request in requests:
            with suppress(IllegalMove):
                found.append((request, self.target_of(request)))
        return found

    def select(
        self,
        *,
        statuses: Iterable[Status] | None = None,
        client_id: str | None = None,
    ) -> list[DeletionRequest]:
        """Return the requests in order of arrival, of these statuses and this client where given, without ids."""
        query = sa.select(_requests).order_by(_requests.c.number)
        if statuses is not None:
            query = query.where(_requests.c.status.in_([str(status) for status in statuses]))
        if client_id is not None:
            query = query.where(_requests.c.client_id == client_id)
        with self.database.reading() as connection:
            return texts.requests_of(connection, connection.execute(query).all())

    def page(self, wanted: RequestFilter, *, today: date) -> RequestPage:
        """Return the requests that a filter finds, without ids; deadlines are seen from `today`."""
        with self.database.reading() as connection:
            numbers, total = request_search.find(connection, wanted, today, self.searched)
            query = sa.select(_requests).where(_requests.c.number.in_(numbers))
            found = texts.requests_of(connection, connection.execute(query).all() if numbers else ())
        by_number = {request_number(request.id): request for request in found}
        return RequestPage(tuple(by_number[number] for number in numbers), total)

    def totals(self, lists: Iterable[RequestFilter], *, today: date) -> tuple[int, ...]:
        """Return how many requests each filter finds, in order; deadlines are seen from `today`."""
        with self.database.reading() as connection:
            return tuple(request_search.count(connection, one, today, self.searched) for one in lists)

    def last_retry(self, request_id: str) -> LastRetry:
        """Return what a request's newest retry says, or of one that was filed in another's place its filing."""
        events = schema.events
        retried = (events.c.request_number == request_number(request_id)) & (
            events.c.from_status.in_([str(Status.FAILED), str(Status.REOPENED)])
            | (events.c.kind == SUBMITTED)
        )
        query = sa.select(events.c.detail, events.c.actor).where(retried).order_by(events.c.sequence.desc())
        with self.database.reading() as connection:
            detail, actor = connection.execute(query.limit(1)).one()
        loss = float(detail.get(ACCEPTED_LOSS, 0.0))
        return LastRetry(
            accepted_loss=loss,
            accepted_by=actor if loss else "",
            attempts_before=detail.get(ATTEMPTS_BEFORE, 0),
        )

    def outcomes(self, granularity: Granularity) -> dict[tuple[str, Outcome], int]:
        """Return how many of the newest deletions of a granularity ended how, by method; none that others answer.

        Of one whose records came back nothing is shown now.
        """
        has_outcome = sa.select(_requests).where(_requests.c.outcome.is_not(None))
        table = has_outcome.order_by(_requests.c.number.desc()).limit(_NEWEST).subquery().c
        kinds = {
            Granularity.CLASS: table.client_id.is_(None),
            Granularity.SAMPLE: table.num_samples > 0,
            Granularity.CLIENT: table.client_id.is_not(None) & (table.num_samples == 0),
        }
        came_back = table.status == str(Status.REOPENED)
        ended = sa.case((came_back, str(Outcome.NOT_SHOWN)), else_=table.outcome).label("ended")
        query = sa.select(table.method, ended, sa.func.count().label("num"))
        query = query.where(_is_own(table), kinds[granularity])
        with self.database.reading() as connection:
            rows = connection.execute(query.group_by(table.method, sa.literal_column("ended")))
            return {(row.method, Outcome(row.ended)): row.num for row in rows}

    def results(self, limit: int) -> list[tuple[str, Mapping[str, Any]]]:
        """Return method and result of the newest deletions that were completed; none that others answer."""
        columns = _requests.c
        query = sa.select(columns.method, columns.result).order_by(columns.number.desc()).limit(limit)
        completed = (columns.status == str(Status.COMPLETED)) & _is_own(columns)
        with self.database.reading() as connection:
            return [(row.method, row.result) for row in connection.execute(query.where(completed))]

    def text_commitment(self, request_id: str, kind: Kind) -> str | None:
        """Return the salted hash of a request's newest text of this kind; None where there never was one."""
        with self.database.reading() as connection:
            return texts.digest_of(connection, request_id, kind)

    def status_counts(self) -> dict[Status, int]:
        """Return how many requests there are in each state that has any; one index says it."""
        query = sa.select(_requests.c.status, sa.func.count().label("num")).group_by(_requests.c.status)
        with self.database.reading() as connection:
            return {Status(row.status): row.num for row in connection.execute(query)}

    def oldest_open(self) -> dict[Status, datetime]:
        """Return since when the oldest request is in each open state that has any."""
        oldest = sa.func.min(_requests.c.updated_at, type_=_requests.c.updated_at.type).label("oldest")
        query = sa.select(_requests.c.status, oldest).group_by(_requests.c.status)
        query = query.where(_requests.c.status.in_([str(status) for status in OPEN_STATUSES]))
        with self.database.reading() as connection:
            return {Status(row.status): row.oldest for row in connection.execute(query)}

    def outcome_counts(self) -> dict[Outcome, int]:
        """Return of how many completed requests there is each outcome that any has."""
        column = _requests.c.outcome
        query = sa.select(column, sa.func.count().label("num")).where(column.is_not(None)).group_by(column)
        query = query.where(_requests.c.status == str(Status.COMPLETED))  # with which an index has it
        with self.database.reading() as connection:
            return {Outcome(row.outcome): row.num for row in connection.execute(query)}

    def deadlines(self, today: date) -> tuple[int, int]:
        """Return how many requests wait for an answer past their deadline, and how many are due within seven days."""
        waiting = [str(status) for status in Status if status not in ANSWERED_STATUSES]
        query = sa.select(
            sa.func.coalesce(sa.func.sum(sa.case((_requests.c.due_on < today, 1), else_=0)), 0),
            sa.func.coalesce(sa.func.sum(sa.case((_requests.c.due_on >= today, 1), else_=0)), 0),
        ).where(_requests.c.due_on <= today + SOON, _requests.c.status.in_(waiting))
        with self.database.reading() as connection:
            overdue, soon = connection.execute(query).one()
        return int(overdue), int(soon)


def _is_own(columns: Any) -> sa.ColumnElement[bool]:
    """Tell whether a request's end is that of a deletion of its own; another's can answer it after an attempt."""
    return sa.and_(columns.attempts > 0, columns.result["answered_by"].as_string().is_(None))


def _refuse_another(connection: sa.Connection, known: DeletionRequest, new: NewRequest, listed: str) -> None:
    """Refuse a new request under a key that has made another one."""
    asked = (known.target, known.method, known.parameters)
    if (
        (known.is_held or not new.hold_reason)
        and asked == (new.target.without_ids(), new.method, new.parameters)
        and _says_same(connection, known, new.particulars)
        and statements.names_same(connection, request_number(known.id), listed)
    ):
        return
    raise ConflictingRequest(
        f"The idempotency key belongs to request {known.id} ({known.target.describe()}, {known.method}), which asks "
        "for something else. Use a new key.",
        code="key-used",
        request=known.id,
    )


def _says_same(connection: sa.Connection, known: DeletionRequest, given: Particulars) -> bool:
    """Return whether what is given now was given then; what is left out, or was erased or amended, cannot differ."""
    events = schema.events
    amended = (events.c.request_number == request_number(known.id)) & (events.c.kind == AMENDED)
    is_amended = connection.scalar(sa.select(sa.exists().where(amended)))
    are_changed = known.is_redacted or is_amended
    written = replace(
        given,
        received_on=known.received_on if given.received_on else None,
        due_on=known.first_due_on if given.due_on else None,
        ground=known.ground if given.ground and not is_amended else given.ground,
        reference=known.reference if given.reference and not are_changed else given.reference,
        note=known.note if given.note and not are_changed else given.note,
    )
    return given == written


def file_request(
    connection: sa.Connection,
    new: NewRequest,
    days: tuple[date, date],
    now: datetime,
    listed: str,
    *,
    by: str,
    detail: Mapping[str, Any] | None = None,
    extension: tuple[int, str] = (0, ""),
) -> DeletionRequest:
    """Write a new request down: filed, held where it is to be, and waiting where people decide before it begins.

    days, listed: as `insert_row` takes them. by: who files it. extension: the days and the reason of a deadline that
        was extended already.
    """
    row = insert_row(connection, new, days, now, listed, extended_days=extension[0])
    written = {kind: getattr(new.particulars, kind) for kind in texts.OF_FILERS}
    last_round = connection.scalar(sa.select(sa.func.max(schema.rounds.c.sequence))) or 0
    said = {
        **(detail or {}),
        "last_round_sequence": last_round,  # where watching the rounds begins
        **texts.write(connection, row.number, written | {Kind.EXTENSION: extension[1]}),
        row_seals.REQUEST_SHA256: row_seals.request_hash(connection, row),
    }
    chain.append(connection, row.number, SUBMITTED, actor=by, detail=said, now=now)
    filed = statements.request_in(connection, row)
    if new.approvals_needed:
        filed = statements.write_move(connection, filed, Status.AWAITING, actor=row_seals.ACTOR, now=now)
    if new.hold_reason:
        reason = {Kind.HOLD: new.hold_reason}
        filed = statements.write_change(
            connection, filed, HELD, actor=by, now=now, written=reason, is_held=True
        )
    return filed


def insert_row(
    connection: sa.Connection,
    new: NewRequest,
    days: tuple[date, date],
    now: datetime,
    listed: str = "",
    extended_days: int = 0,
) -> sa.Row[Any]:
    """Write a new request and the list of its ids; return its row. days: of its receipt, and of its deadline."""
    values = columns_of(
        _requests,
        new,
        new.target,
        new.particulars,
        target=as_json({name: getattr(new.target, name) for name in TARGET_FIELDS}),
        status=str(Status.RECEIVED),
        created_at=now,
        updated_at=now,
        received_on=days[0],
        due_on=days[1],
        extended_days=extended_days,
    )
    row = connection.execute(sa.insert(_requests).values(values).returning(*_requests.c)).one()
    if new.target.sample_ids:
        ids = {"request_number": row.number, "sha256": hash_of_text(listed), "sample_ids": listed}
        connection.execute(sa.insert(_samples).values(ids))
    return row


def _find(connection: sa.Connection, key: str, by: str, role: str | None) -> DeletionRequest | None:
    """Return the request that this submitter filed under this idempotency key, if any."""
    query = sa.select(_requests).where(_requests.c.idempotency_key == key, *_filed_by(by, role))
    row = connection.execute(query).one_or_none()
    return None if row is None else statements.request_in(connection, row)


def _filed_by(name: str, role: str | None) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions that a request is of this submitter: one name in two roles is two submitters."""
    return _requests.c.submitted_by == name, _requests.c.submitted_role.is_not_distinct_from(role)


def _refuse_if_over(connection: sa.Connection, new: NewRequest, allowance: Allowance, now: datetime) -> None:
    """Refuse a request with which its submitter goes beyond its allowance; within 24 hours all that was filed counts.

    Raises:
        LimitExceeded: it does.
    """
    by_submitter = _filed_by(new.submitted_by, new.submitted_role)
    if allowance.max_open is not None:
        is_open = _requests.c.status.in_([str(status) for status in OPEN_STATUSES])
        num_open = connection.scalar(
            sa.select(sa.func.count()).select_from(_requests).where(*by_submitter, is_open)
        )
        if (num_open or 0) >= allowance.max_open:
            raise LimitExceeded(
                f"{new.submitted_by!r} has {num_open:,} open requests; at most {allowance.max_open:,} are allowed. "
                "Wait until some have ended, or cancel some.",
                code="open-requests",
            )
    quota = allowance.daily
    if quota is None:
        return
    samples_named = sa.func.coalesce(sa.func.sum(_requests.c.num_samples), 0)
    count, named = connection.execute(
        sa.select(sa.func.count(), samples_named).where(*by_submitter, _requests.c.created_at > now - DAY)
    ).one()
    if count + 1 > quota.requests_per_day or named + new.target.num_samples > quota.samples_per_day:
        raise LimitExceeded(
            f"{new.submitted_by!r} has filed {count:,} requests naming {named:,} samples within 24 hours, cancelled "
            f"ones included; with this one it would be over the quota of {quota.requests_per_day:,} requests and "
            f"{quota.samples_per_day:,} samples. Try again tomorrow, or ask the federation's operator.",
            code="daily-quota",
        )
