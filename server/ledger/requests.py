"""The requests, as people see them through the deletion service: filed, read, withdrawn, tried again."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from server.ledger import samples, schema, statements
from server.ledger.part import Part
from server.ledger.records import (
    ACCEPTED_LOSS,
    SUBMITTED,
    Quota,
    as_json,
    no_such_request,
    request_number,
    request_of,
)
from unlearning.errors import ConflictingRequest, IllegalMove
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
        target, parameters = self.key_target(target), as_json(parameters)
        listed = samples.values_of(target.sample_ids)
        with self._database.writing() as connection:
            known = statements.find(connection, idempotency_key)
            if known is not None:
                number = request_number(known.id)
                asked = (known.target, known.method, known.parameters)
                if asked == (target.without_ids(), method, parameters) and samples.names_same(
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
                **statements.row_seal(connection, row),
            }
            statements.append_event(
                connection, row.number, SUBMITTED, actor=submitted_by, detail=detail, now=now
            )
        return request_of(row)

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

    def find(self, idempotency_key: str) -> DeletionRequest | None:
        """Return the request that this idempotency key made, if any."""
        with self._database.reading() as connection:
            return statements.find(connection, idempotency_key)

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
                samples.load_target(connection, row.number, request_of(row).target, self._keys)
                for row in connection.execute(query).all()
            ]
        return Exclusions().including(targets)


def _without_samples(target: Target) -> dict[str, Any]:
    """Return the target as its own column has it."""
    return {
        "granularity": str(target.granularity),
        "client_id": target.client_id,
        "class_label": target.class_label,
    }
