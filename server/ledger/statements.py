"""The steps that several of the ledger's transactions share; each runs inside its caller's."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from server.ledger import chain, schema
from server.ledger.records import (
    MOVED,
    LimitExceeded,
    as_json,
    no_such_request,
    request_number,
    request_of,
)
from unlearning.errors import ConflictingRequest, Fenced
from unlearning.requests import OPEN_STATUSES, DeletionRequest, Status

_requests = schema.requests


def get(connection: sa.Connection, identifier: str) -> DeletionRequest:
    """The request with this id.

    Raises:
        RequestNotFound: there is none.
    """
    number = request_number(identifier)
    row = connection.execute(sa.select(_requests).where(_requests.c.number == number)).one_or_none()
    if row is None:
        raise no_such_request(identifier)
    return request_of(row)


def find(connection: sa.Connection, idempotency_key: str) -> DeletionRequest | None:
    """The request that this idempotency key made, if any."""
    query = sa.select(_requests).where(_requests.c.idempotency_key == idempotency_key)
    row = connection.execute(query).one_or_none()
    return None if row is None else request_of(row)


def refuse_if_open(connection: sa.Connection, target_key: str) -> None:
    """Refuse a second open request for one target; a unique index of the database says the same.

    Raises:
        ConflictingRequest: there is one.
    """
    row = connection.execute(
        sa.select(_requests).where(
            _requests.c.target_key == target_key,
            _requests.c.status.in_([str(status) for status in OPEN_STATUSES]),
        )
    ).one_or_none()
    if row is not None:
        request = request_of(row)
        raise ConflictingRequest(
            f"Request {request.id} ({request.target.describe()}) is {request.status} and concerns the "
            "same target. Wait until it is over, or cancel it."
        )


def refuse_if_too_many_open(
    connection: sa.Connection, submitted_by: str, submitted_role: str | None, max_open: int
) -> None:
    """Refuse one more request of somebody who has `max_open` open ones.

    Raises:
        LimitExceeded: there are as many.
    """
    num_open = connection.scalar(
        sa.select(sa.func.count())
        .select_from(_requests)
        .where(
            _requests.c.submitted_by == submitted_by,
            _requests.c.submitted_role.is_not_distinct_from(submitted_role),
            _requests.c.status.in_([str(status) for status in OPEN_STATUSES]),
        )
    )
    if (num_open or 0) >= max_open:
        raise LimitExceeded(
            f"{submitted_by!r} has {num_open:,} open requests; at most {max_open:,} are allowed. "
            "Wait until some are over, or cancel some."
        )


def exclude(connection: sa.Connection, request: DeletionRequest, now: datetime) -> None:
    """Exclude the request's target for good; earlier versions did so before recovery, which stays as it is."""
    number, table = request_number(request.id), schema.exclusions
    known = connection.scalar(sa.select(table.c.request_number).where(table.c.request_number == number))
    if known is None:
        connection.execute(sa.insert(table).values(request_number=number, at=now))


def fence_holder(connection: sa.Connection, token: int) -> str:
    """Who holds the fence, if `token` is the newest one.

    Raises:
        Fenced: it is not.
    """
    row = connection.execute(sa.select(schema.fence)).one()
    if row.token != token:
        raise Fenced(
            f"Another server process has taken over (token {row.token}, held by {row.holder!r}; "
            f"this process has {token}). This one must stop; nothing was changed."
        )
    return str(row.holder)


def write_move(
    connection: sa.Connection,
    request: DeletionRequest,
    to: Status,
    *,
    actor: str,
    now: datetime,
    reason: str = "",
    detail: Mapping[str, Any] | None = None,
    **changes: Any,
) -> DeletionRequest:
    """Change the status and record it; `changes` are further columns of the request."""
    number = request_number(request.id)
    values = {"status": str(to), "reason": reason, "retryable": False, "updated_at": now, **changes}
    row = connection.execute(
        sa.update(_requests).where(_requests.c.number == number).values(values).returning(*_requests.c)
    ).one()
    append_event(
        connection,
        number,
        MOVED,
        actor=actor,
        detail={**(detail or {}), **({"reason": reason} if reason else {})},
        now=now,
        move=(request.status, to),
    )
    return request_of(row)


def append_event(
    connection: sa.Connection,
    number: int,
    kind: str,
    *,
    actor: str,
    now: datetime,
    detail: Mapping[str, Any] | None = None,
    move: tuple[Status, Status] | None = None,
) -> None:
    """Add one event to request `number`."""
    chain.append(
        connection,
        {
            "request_number": number,
            "kind": kind,
            "from_status": str(move[0]) if move else None,
            "to_status": str(move[1]) if move else None,
            "actor": actor,
            "detail": as_json(detail or {}),
            "at": now,
        },
    )
