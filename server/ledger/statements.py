"""The steps that several of the ledger's transactions share; each runs inside its caller's."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from server.ledger import chain, row_seals, schema, texts
from server.ledger.records import (
    APPROVED,
    MOVED,
    RECHECK_REQUESTED,
    RECHECKED,
    no_such_request,
    request_number,
)
from unlearning.errors import IllegalMove
from unlearning.pseudonyms import SubjectKeys
from unlearning.requests import (
    WITHOUT_DELETION,
    DeletionRequest,
    Granularity,
    Status,
    Target,
    hash_of_text,
)

_requests, _samples, _events = schema.requests, schema.request_samples, schema.events


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


def refuse_if_held(request: DeletionRequest) -> None:
    """Refuse to begin with a request that is held; a rule of the database says the same.

    Raises:
        IllegalMove: it is.
    """
    if request.is_held:
        raise IllegalMove(
            f"Request {request.id} is held, so it does not begin. "
            f"Lift the hold first: flower-unlearn release {request.id}",
            code="held",
        )


def refuse_if_undecided(connection: sa.Connection, request: DeletionRequest) -> None:
    """Refuse to go on with a request that too few people have accepted; a rule of the database says the same.

    Raises:
        IllegalMove: more must.
    """
    given = len(approvers(connection, request))
    if given < request.approvals_needed:
        raise IllegalMove(
            f"Request {request.id} needs {request.approvals_needed} approval(s) and has {given}. "
            f"An officer accepts it: flower-unlearn accept {request.id}",
            code="undecided",
        )


def approvers(connection: sa.Connection, request: DeletionRequest) -> set[str]:
    """Return the names of the people who have accepted a request."""
    mine = _events.c.request_number == request_number(request.id)
    return set(connection.scalars(sa.select(_events.c.actor).where(mine, _events.c.kind == APPROVED)))


def write_move(
    connection: sa.Connection,
    request: DeletionRequest,
    to: Status,
    *,
    actor: str,
    now: datetime,
    reason: str = "",
    detail: Mapping[str, Any] | None = None,
    written: Mapping[texts.Kind, str] | None = None,
    **changes: Any,
) -> DeletionRequest:
    """Change the status and record it; `changes` are further columns of the request.

    The sample ids of a request that ends without a deletion are erased; their number and hash stay. What is excluded
    already, because the request was reopened, keeps them.
    """
    values = {"status": str(to), "reason": reason, "retryable": False, **changes}
    said = {**(detail or {}), **({"reason": reason} if reason else {})}
    moved = write_change(
        connection,
        request,
        MOVED,
        actor=actor,
        now=now,
        detail=said,
        written=written,
        move=(request.status, to),
        **values,
    )
    if to in WITHOUT_DELETION and not is_excluded(connection, request):
        connection.execute(
            sa.update(_samples)
            .where(_samples.c.request_number == request_number(request.id))
            .values(sample_ids=None)
        )
    return moved


def has_open_recheck(connection: sa.Connection, request: DeletionRequest) -> bool:
    """Return whether a recheck of a request was requested and not done yet."""
    mine = _events.c.request_number == request_number(request.id)
    kinds = _events.c.kind.in_([RECHECK_REQUESTED, RECHECKED, MOVED])
    newest = sa.select(_events.c.kind).where(mine, kinds).order_by(_events.c.sequence.desc()).limit(1)
    return connection.scalar(newest) == RECHECK_REQUESTED


def is_excluded(connection: sa.Connection, request: DeletionRequest) -> bool:
    """Return whether a request's target is permanently excluded by it."""
    column = schema.exclusions.c.request_number
    mine = sa.select(column).where(column == request_number(request.id))
    return connection.scalar(mine) is not None


def write_change(
    connection: sa.Connection,
    request: DeletionRequest,
    kind: str,
    *,
    actor: str,
    now: datetime,
    detail: Mapping[str, Any] | None = None,
    written: Mapping[texts.Kind, str] | None = None,
    move: tuple[Status, Status] | None = None,
    **changes: Any,
) -> DeletionRequest:
    """Change columns of a request and record it as an event of this kind; of its status by `write_move` only.

    written: texts of people that come with it.
    """
    number = request_number(request.id)
    said = {**(detail or {}), **texts.write(connection, number, written or {})}
    values = {"updated_at": now, **changes}
    row = connection.execute(
        sa.update(_requests).where(_requests.c.number == number).values(values).returning(*_requests.c)
    ).one()
    said[row_seals.REQUEST_SHA256] = row_seals.request_hash(connection, row)
    chain.append(connection, number, kind, actor=actor, now=now, detail=said, move=move)
    return request_in(connection, row)


def load_target(connection: sa.Connection, number: int, target: Target, keys: SubjectKeys | None) -> Target:
    """Return `target` of the request in row `number` with its ids, keyed where there are keys; none if erased."""
    if target.granularity is not Granularity.SAMPLE or target.sample_ids:
        return target
    text = connection.scalar(sa.select(_samples.c.sample_ids).where(_samples.c.request_number == number))
    return key_target(keys, replace(target, sample_ids=frozenset(() if text is None else json.loads(text))))


def key_target(keys: SubjectKeys | None, target: Target) -> Target:
    """Return `target` as a ledger with these keys names samples."""
    return target if keys is None else keys.target(target)


def names_same(connection: sa.Connection, number: int, listed: str) -> bool:
    """Return whether the request in row `number` names these samples; by their hash, which outlives the ids."""
    known = connection.scalar(sa.select(_samples.c.sha256).where(_samples.c.request_number == number))
    return known is None or known == hash_of_text(listed)
