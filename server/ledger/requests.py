"""The requests, as people see them through the deletion service: filed, read, withdrawn, tried again."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa

from server.ledger import chain, samples, schema, statements, texts
from server.ledger.part import Part
from server.ledger.records import (
    ACCEPTED_LOSS,
    AMENDED,
    SUBMITTED,
    UNBOUNDED,
    Allowance,
    NewRequest,
    as_json,
    no_such_request,
    request_number,
    target_of,
)
from unlearning.errors import ConflictingRequest, IllegalMove
from unlearning.gdpr import Particulars
from unlearning.requests import (
    LEGAL_MOVES,
    DeletionRequest,
    Exclusions,
    Status,
    Target,
)

_requests = schema.requests


class RequestsPart(Part):
    """The requests: what was asked, by whom, and what is forgotten for good."""

    def submit(self, new: NewRequest, *, now: datetime, allowance: Allowance = UNBOUNDED) -> DeletionRequest:
        """Write a new request down, or return the one that its submitter has already filed under its key.

        Raises:
            ConflictingRequest: the submitter's key made another request, or one for this target is open.
            LimitExceeded: the submitter has too many open requests, or is over its quota.
            InvalidRequest: the days that were given cannot be.
        """
        days = new.particulars.dates(now)
        new = replace(new, target=self.key_target(new.target), parameters=as_json(new.parameters))
        listed = samples.values_of(new.target.sample_ids)
        with self._database.writing() as connection:
            known = statements.find(connection, new.idempotency_key, new.submitted_by, new.submitted_role)
            if known is not None:
                _refuse_another(connection, known, new, listed)
                return known
            statements.refuse_if_open(connection, new.target.key)
            statements.refuse_if_over(connection, new, allowance, now)
            row = insert_row(connection, new, days, now)
            if new.target.sample_ids:
                samples.insert(connection, row.number, listed)
            given = new.particulars
            written = {texts.Kind.REFERENCE: given.reference, texts.Kind.NOTE: given.note}
            last_round = connection.scalar(sa.select(sa.func.max(schema.rounds.c.sequence))) or 0
            detail = {
                "last_round_sequence": last_round,  # where watching the rounds begins
                **texts.write(connection, row.number, written),
                **statements.row_seal(connection, row),
            }
            chain.append(connection, row.number, SUBMITTED, actor=new.submitted_by, detail=detail, now=now)
            return statements.request_in(connection, row)

    def get(self, request_id: str) -> DeletionRequest:
        """Return the request with this id.

        Raises:
            RequestNotFound: there is none.
        """
        with self._database.reading() as connection:
            return statements.get(connection, request_id)

    def client_of(self, request_id: str) -> str | None:
        """Return the client that a request is about, None where it is a class; reads nothing else of it.

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

    def find(self, idempotency_key: str, by: str, role: str | None = None) -> DeletionRequest | None:
        """Return the request that the submitter of this name and role filed under this key, if any."""
        with self._database.reading() as connection:
            return statements.find(connection, idempotency_key, by, role)

    def target_of(self, request: DeletionRequest) -> Target:
        """Return what a request asks to forget, with the ids of its samples; requests as such are read without them.

        Raises:
            IllegalMove: it has given its ids back, because it is over.
        """
        with self._database.reading() as connection:
            target = samples.load_target(connection, request_number(request.id), request.target, self._keys)
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
        """Return the requests in order of arrival, of these statuses and this client where given, without ids.

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
            return texts.requests_of(connection, connection.execute(query).all())

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
            return statements.write_move(
                connection, request, Status.CANCELLED, actor=by, now=now, is_held=False
            )

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
            statements.refuse_if_held(request)
            statements.refuse_if_open(connection, request.target.key)
            detail: dict[str, Any] = {}
            if accept_score_loss:
                text = f"{by} accepts that the model loses up to {accept_score_loss:g} points of score"
                detail = {ACCEPTED_LOSS: accept_score_loss, "text": text}
            return statements.write_move(
                connection, request, Status.SCHEDULED, actor=by, now=now, detail=detail, attempts=0
            )

    def exclusions(self, *, concerning: Target | None = None) -> Exclusions:
        """Return all that has been forgotten for good, with all sample ids; or of it, what can concern one target."""
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
                samples.load_target(connection, row.number, target_of(row), self._keys)
                for row in connection.execute(query).all()
            ]
        return Exclusions().including(targets)


def _refuse_another(
    connection: sa.Connection, known: DeletionRequest, new: NewRequest, listed: Mapping[str, object]
) -> None:
    """Refuse a new request under a key that has made another one."""
    asked = (known.target, known.method, known.parameters)
    if (
        asked == (new.target.without_ids(), new.method, new.parameters)
        and _says_same(connection, known, new.particulars)
        and samples.names_same(connection, request_number(known.id), listed)
    ):
        return
    raise ConflictingRequest(
        f"The idempotency key belongs to request {known.id} ({known.target.describe()}, {known.method}), which asks "
        "for something else. Use a new key."
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


def insert_row(
    connection: sa.Connection, new: NewRequest, days: tuple[date, date], now: datetime
) -> sa.Row[Any]:
    """Write the row of a new request, `days` being those of its receipt and of its deadline; return it as it stands."""
    values = {
        "idempotency_key": new.idempotency_key,
        "target_key": new.target.key,
        "target": _without_samples(new.target),
        "client_id": new.target.client_id,
        "method": new.method,
        "parameters": new.parameters,
        "submitted_by": new.submitted_by,
        "submitted_role": new.submitted_role,
        "status": str(Status.RECEIVED),
        "reason": "",
        "retryable": False,
        "attempts": 0,
        "created_at": now,
        "updated_at": now,
        "result": {},
        "num_samples": new.target.num_samples,
        "received_on": days[0],
        "due_on": days[1],
        "extended_days": 0,
        "ground": new.particulars.ground and str(new.particulars.ground),
        "is_held": False,
    }
    return connection.execute(sa.insert(_requests).values(values).returning(*_requests.c)).one()


def _without_samples(target: Target) -> dict[str, Any]:
    """Return the target as its own column has it."""
    return {
        "granularity": str(target.granularity),
        "client_id": target.client_id,
        "class_label": target.class_label,
    }
