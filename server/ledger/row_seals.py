"""What binds the rows of the other tables to the events' chain: hashes of rows in the details of events.

    requests, request_samples,   each event that follows a change of what belongs to a request carries its
    exclusions                   `request_sha256`
    request_texts                the event with which a text came names it, and that with which it was erased (texts.py)
    rounds, refusals             an event `sealed` for each write: from which row to which, and their hash
    fence, federation_facts      an event `sealed` for each write: the hash of all that is there now

So a change of a row past this program needs all later events to be rewritten too, and then no head that was
kept elsewhere (in a certificate, in a file) fits any more. check.py compares all this.

The forms that are hashed are fixed: the hashes in old events depend on them. All columns of a row are hashed, so a
migration that adds a column must seal the rows of its table again.
"""

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any

import sqlalchemy as sa

from server.ledger import chain, schema
from server.ledger.records import SEALED

REQUEST_SHA256 = "request_sha256"
"""Under this name the details of an event have the hash of its request's row after it."""
ACTOR = "ledger"
"""Who is said to have done what the ledger does by itself."""


def row_hash(table: sa.Table, row: sa.Row[Any], **more: Any) -> str:
    """Compute SHA-256 of a row by its columns' names, as canonical JSON (sorted keys, no blanks, ASCII, UTC)."""
    values = {column.name: row._mapping[column.name] for column in table.c} | more
    plain = {name: _plain(value) for name, value in values.items()}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def hash_of_rows(hashes: Iterable[str]) -> str:
    """Compute SHA-256 over the hashes of rows in their order."""
    whole = hashlib.sha256()
    for digest in hashes:
        whole.update(digest.encode("ascii"))
    return whole.hexdigest()


def request_hash(connection: sa.Connection, row: sa.Row[Any]) -> str:
    """Compute the hash of a request's row with what belongs to it elsewhere: the list of its ids, and its exclusion."""
    found = {
        name: connection.scalar(sa.select(column).where(column.table.c.request_number == row.number))
        for name, column in (
            ("samples_sha256", schema.request_samples.c.sha256),
            ("excluded_at", schema.exclusions.c.at),
        )
    }
    return row_hash(schema.requests, row, **found)


def seal_rows(connection: sa.Connection, table: sa.Table, rows: Iterable[sa.Row[Any]], now: datetime) -> None:
    """Commit to rows that were just added to `rounds` or `refusals`, in order of their sequence numbers."""
    written = list(rows)
    if written:
        detail = {
            "table": table.name,
            "first": written[0].sequence,
            "last": written[-1].sequence,
            "sha256": hash_of_rows(row_hash(table, row) for row in written),
        }
        chain.append(connection, None, SEALED, actor=ACTOR, detail=detail, now=now)


def seal_whole(connection: sa.Connection, table: sa.Table, now: datetime) -> None:
    """Commit to all that stands in `fence` or `federation_facts` now."""
    detail = {"table": table.name, "sha256": whole_hash(connection, table)}
    chain.append(connection, None, SEALED, actor=ACTOR, detail=detail, now=now)


def whole_hash(connection: sa.Connection, table: sa.Table) -> str:
    """Compute the hash of all rows of a small table, in the order of its key."""
    rows = connection.execute(sa.select(table)).all()
    key = next(iter(table.primary_key)).name  # sorted here: databases order letters differently
    return hash_of_rows(row_hash(table, row) for row in sorted(rows, key=lambda row: row._mapping[key]))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return value.isoformat() if isinstance(value, date) else value
