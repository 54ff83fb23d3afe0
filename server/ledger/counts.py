"""What can be counted of requests without reading them."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from server.ledger import schema
from unlearning.requests import Status

_requests = schema.requests


def by_status(connection: sa.Connection) -> dict[Status, tuple[int, datetime]]:
    """Return by state how many requests there are and the earliest time at which one came into it."""
    oldest = sa.func.min(_requests.c.updated_at, type_=_requests.c.updated_at.type)
    query = sa.select(_requests.c.status, sa.func.count().label("num"), oldest.label("oldest"))
    rows = connection.execute(query.group_by(_requests.c.status))
    return {Status(row.status): (row.num, row.oldest) for row in rows}


def forgotten_clients(connection: sa.Connection) -> frozenset[str]:
    """Return the clients whose whole deletion was carried out."""
    query = _select_forgotten(_requests.c.client_id).where(_requests.c.num_samples == 0)
    return frozenset(connection.scalars(query))


def forgotten_samples(connection: sa.Connection) -> dict[str, int]:
    """Return by client how many samples its deletions named that were carried out, added up."""
    query = _select_forgotten(_requests.c.client_id, sa.func.sum(_requests.c.num_samples).label("num"))
    rows = connection.execute(query.where(_requests.c.num_samples > 0).group_by(_requests.c.client_id))
    return {row.client_id: int(row.num) for row in rows}


def _select_forgotten(*columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    query: sa.Select[Any] = sa.select(*columns)
    return query.join(schema.exclusions, schema.exclusions.c.request_number == _requests.c.number).where(
        _requests.c.client_id.is_not(None)
    )
