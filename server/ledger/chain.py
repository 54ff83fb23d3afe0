"""The hash chain over the events: who changes, removes or inserts one leaves a broken link.

Each event's hash is SHA-256 over the canonical JSON (sorted keys, no blanks, ASCII) of everything
that the event says and of the hash before it. Cutting events off the end breaks no link: who must
notice that keeps a head (`head`) elsewhere, in a report for example, and compares.

The form that is hashed is fixed: the hashes of old events depend on it.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from server.ledger import schema
from server.ledger.records import as_json
from unlearning.requests import Status

# Stands before the first event.
GENESIS_HASH = "0" * 64
# Events in memory at once while the chain is checked.
_PAGE = 1000

_events = schema.events


def event_hash(values: Mapping[str, Any], previous_hash: str) -> str:
    """Compute the hash of an event with these columns after `previous_hash`: 64 hexadecimal digits."""
    at: datetime = values["at"]
    content = {
        "sequence": values["sequence"],
        "request_number": values["request_number"],
        "kind": values["kind"],
        "from_status": values["from_status"],
        "to_status": values["to_status"],
        "actor": values["actor"],
        "detail": values["detail"],
        "at": at.astimezone(UTC).isoformat(timespec="microseconds"),
        "previous_hash": previous_hash,
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def head(connection: sa.Connection) -> tuple[int, str]:
    """Return sequence number and hash of the newest event; 0 and `GENESIS_HASH` where there is none."""
    newest = sa.select(_events.c.sequence, _events.c.hash).order_by(_events.c.sequence.desc()).limit(1)
    row = connection.execute(newest).one_or_none()
    return (0, GENESIS_HASH) if row is None else (row.sequence, row.hash)


def append(
    connection: sa.Connection,
    number: int | None,
    kind: str,
    *,
    actor: str,
    now: datetime,
    detail: Mapping[str, Any] | None = None,
    move: tuple[Status, Status] | None = None,
) -> None:
    """Add an event of request `number`, or of the federation, to the chain; the caller holds the write lock.

    The sequence number is given here and not by the database, because it is part of what is hashed.
    The lock makes that exact; a unique index over `previous_hash` refuses a fork all the same.
    """
    sequence, previous_hash = head(connection)
    complete = {
        "sequence": sequence + 1,
        "request_number": number,
        "kind": kind,
        "from_status": str(move[0]) if move else None,
        "to_status": str(move[1]) if move else None,
        "actor": actor,
        "detail": as_json(detail or {}),
        "at": now,
    }
    connection.execute(
        sa.insert(_events).values(
            **complete, previous_hash=previous_hash, hash=event_hash(complete, previous_hash)
        )
    )


def first_broken(connection: sa.Connection) -> int | None:
    """Return the sequence number of the first event that does not follow from those before it, if any."""
    last, expected, page = 0, GENESIS_HASH, _PAGE
    while True:
        after = sa.select(_events).where(_events.c.sequence > last).order_by(_events.c.sequence)
        try:
            rows = connection.execute(after.limit(page)).all()
        except ValueError:  # a detail that is no JSON, or a time that is none; go on one by one
            if page == 1:
                numbers = sa.select(_events.c.sequence).where(_events.c.sequence > last)
                return connection.scalar(numbers.order_by(_events.c.sequence).limit(1))
            page = 1
            continue
        for row in rows:
            if row.previous_hash != expected or row.hash != event_hash(row._asdict(), expected):
                return int(row.sequence)
            last, expected = row.sequence, row.hash
        if len(rows) < page:
            return None
