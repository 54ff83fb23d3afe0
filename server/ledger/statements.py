"""The steps that several of the ledger's transactions share; each runs inside its caller's."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from server.ledger import chain, samples, schema, seals, texts
from server.ledger.records import (
    DAY,
    MOVED,
    Allowance,
    LimitExceeded,
    NewRequest,
    no_such_request,
    request_id,
    request_number,
    target_of,
)
from unlearning.errors import ConflictingRequest, Fenced, IllegalMove
from unlearning.requests import OPEN_STATUSES, DeletionRequest, Status

_requests = schema.requests


def get(connection: sa.Connection, identifier: str) -> DeletionRequest:
    """Return the request with this id.

    Raises:
        RequestNotFound: there is none.
    """
    number = request_number(identifier)
    row = connection.execute(sa.select(_requests).where(_requests.c.number == number)).one_or_none()
    if row is None:
        raise no_such_request(identifier)
    return request_in(connection, row)


def request_in(connection: sa.Connection, row: sa.Row[Any]) -> DeletionRequest:
    """Return the request of a row of `requests`, with its texts."""
    return texts.requests_of(connection, [row])[0]


def find(connection: sa.Connection, key: str, by: str, role: str | None) -> DeletionRequest | None:
    """Return the request that this submitter filed under this idempotency key, if any."""
    query = sa.select(_requests).where(_requests.c.idempotency_key == key, *_filed_by(by, role))
    row = connection.execute(query).one_or_none()
    return None if row is None else request_in(connection, row)


def _filed_by(name: str, role: str | None) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions that a request is of this submitter: one name in two roles is two submitters."""
    return _requests.c.submitted_by == name, _requests.c.submitted_role.is_not_distinct_from(role)


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
        state = f"{row.status} and held" if row.is_held else row.status
        raise ConflictingRequest(
            f"Request {request_id(row.number)} ({target_of(row).describe()}) is {state} and concerns the "
            "same target. Wait until it is over, or cancel it."
        )


def refuse_if_held(request: DeletionRequest) -> None:
    """Refuse to begin with a request that is held; a rule of the database says the same.

    Raises:
        IllegalMove: it is.
    """
    if request.is_held:
        raise IllegalMove(
            f"Request {request.id} is held, so it does not begin. "
            f"Lift the hold first: flower-unlearn release {request.id}"
        )


def exclude(connection: sa.Connection, request: DeletionRequest, now: datetime) -> None:
    """Exclude the request's target for good; earlier versions did so before recovery, which stays as it is."""
    number, table = request_number(request.id), schema.exclusions
    known = connection.scalar(sa.select(table.c.request_number).where(table.c.request_number == number))
    if known is None:
        connection.execute(sa.insert(table).values(request_number=number, at=now))


def refuse_if_over(connection: sa.Connection, new: NewRequest, allowance: Allowance, now: datetime) -> None:
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
                "Wait until some are over, or cancel some."
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
            f"{quota.samples_per_day:,} samples. Try again tomorrow, or ask the federation's operator to file it."
        )


def fence_holder(connection: sa.Connection, token: int) -> str:
    """Return who holds the fence, if `token` is the newest one.

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
    """Change the status and record it; `changes` are further columns of the request.

    A request that is over without anything being forgotten gives its sample ids back.
    """
    values = {"status": str(to), "reason": reason, "retryable": False, **changes}
    said = {**(detail or {}), **({"reason": reason} if reason else {})}
    moved = write_change(
        connection, request, MOVED, actor=actor, now=now, detail=said, move=(request.status, to), **values
    )
    if to in (Status.CANCELLED, Status.REFUSED) or (to is Status.FAILED and not moved.retryable):
        samples.give_back(connection, request_number(request.id))
    return moved


def write_change(
    connection: sa.Connection,
    request: DeletionRequest,
    kind: str,
    *,
    actor: str,
    now: datetime,
    detail: Mapping[str, Any],
    move: tuple[Status, Status] | None = None,
    **changes: Any,
) -> DeletionRequest:
    """Change columns of a request and record it as an event of this kind; of its status by `write_move` only."""
    number = request_number(request.id)
    values = {"updated_at": now, **changes}
    row = connection.execute(
        sa.update(_requests).where(_requests.c.number == number).values(values).returning(*_requests.c)
    ).one()
    said = {**detail, **row_seal(connection, row)}
    chain.append(connection, number, kind, actor=actor, now=now, detail=said, move=move)
    return request_in(connection, row)


def row_seal(connection: sa.Connection, row: sa.Row[Any]) -> dict[str, str]:
    """Return what an event's details say of its request's row as it stands now."""
    return {seals.REQUEST_SHA256: seals.request_hash(connection, row)}
