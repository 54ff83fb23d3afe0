"""What people wrote about requests: references, notes, reasons. They can be erased, and the chain of events holds on.

An event commits to a text by SHA-256 over a random salt and the text. Salt and text are in a table of their own; when
both are erased, the hash says nothing any more of what the text was, not even to a reader who can guess it, and the
event stays as it is. The event `redacted` says which were erased.
"""

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from server.ledger import schema
from server.ledger.records import Event, event_of, request_number, request_of
from unlearning.requests import DeletionRequest

TEXTS, ERASED = "texts", "erased"
"""Under these names an event's details have the texts that came with it, by kind; and the numbers of the erased."""
_SALT_BYTES = 32
# A statement takes so many values on each database; of more requests all texts between them are read.
_MOST_NAMED = 1000
_table = schema.request_texts
TEXT = _table.c.text
"""The column that has the texts."""


class Kind(StrEnum):
    """What a text is; of the newest of each kind the request has a field of this name."""

    REFERENCE = "reference"
    NOTE = "note"
    EXTENSION = "extension_reason"
    HOLD = "hold_reason"
    REFUSAL = "refusal_reason"
    LIFTING = "lifting_reason"  # in its event only


OF_REQUESTS = frozenset(Kind) - {Kind.LIFTING}
OF_FILERS = (Kind.REFERENCE, Kind.NOTE)
_OF_EVENTS = frozenset(Kind) - set(OF_FILERS)


def commitment(salt: str, text: str) -> str:
    """Compute SHA-256 over the salt (hexadecimal digits) and the text: 64 hexadecimal digits."""
    return hashlib.sha256(bytes.fromhex(salt) + text.encode()).hexdigest()


def write(connection: sa.Connection, number: int, texts: Mapping[Kind, str]) -> dict[str, Any]:
    """Write texts of request `number` down; return what the details of their event say of them."""
    named: dict[str, Any] = {}
    for kind, text in texts.items():
        if not text:
            continue
        salt = secrets.token_hex(_SALT_BYTES)
        digest = commitment(salt, text)
        values = {"request_number": number, "kind": str(kind), "sha256": digest, "salt": salt, "text": text}
        row = connection.execute(sa.insert(_table).values(values).returning(_table.c.number)).one()
        named[str(kind)] = {"number": row.number, "sha256": digest}
    return {TEXTS: named} if named else {}


def erase(connection: sa.Connection, number: int, *, keep: Iterable[Kind] = ()) -> list[int]:
    """Erase all texts of request `number` that are left, but for kinds to keep; return their numbers."""
    kept = [str(kind) for kind in keep]
    mine = (_table.c.request_number == number) & _table.c.text.is_not(None) & _table.c.kind.not_in(kept)
    erased = connection.scalars(sa.select(_table.c.number).where(mine).order_by(_table.c.number)).all()
    connection.execute(sa.update(_table).where(mine).values(salt=None, text=None))
    return list(erased)


def requests_of(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> list[DeletionRequest]:
    """Return the requests of rows of `requests` with their texts."""
    if not rows:
        return []
    numbers = [row.number for row in rows]
    theirs = (
        _table.c.request_number.in_(numbers)
        if len(numbers) <= _MOST_NAMED
        else _table.c.request_number.between(min(numbers), max(numbers))
    )
    query = sa.select(_table.c.request_number, _table.c.kind, _table.c.text).where(theirs)
    found: dict[int, dict[str, Any]] = {}
    for text in connection.execute(query.order_by(_table.c.number)):
        fields = found.setdefault(text.request_number, {"is_redacted": False})
        fields["is_redacted"] |= text.text is None
        if text.kind in OF_REQUESTS:
            fields[text.kind] = text.text or ""
    return [_with_texts(row, found.get(row.number, {})) for row in rows]


def _with_texts(row: sa.Row[Any], found: Mapping[str, Any]) -> DeletionRequest:
    fields = {"is_redacted": False} | {str(kind): "" for kind in OF_REQUESTS} | dict(found)
    if not row.is_held:
        fields[Kind.HOLD] = ""
    return request_of(row, fields)


def events_of(connection: sa.Connection, rows: Iterable[sa.Row[Any]]) -> list[Event]:
    """Return the events of rows of `events`, each with the reason that came with it."""
    listed = list(rows)
    by_event = {
        row.sequence: named["number"]
        for row in listed
        for kind, named in row.detail.get(TEXTS, {}).items()
        if kind in _OF_EVENTS
    }
    wanted = sa.select(_table.c.number, _table.c.text).where(_table.c.number.in_(by_event.values()))
    texts = {row.number: row.text or "" for row in connection.execute(wanted)} if by_event else {}
    return [event_of(row, texts.get(by_event.get(row.sequence, 0), "")) for row in listed]


def digest_of(connection: sa.Connection, identifier: str, kind: Kind) -> str | None:
    """Return the commitment to the newest text of this kind of a request; None where there never was one."""
    mine = (_table.c.request_number == request_number(identifier)) & (_table.c.kind == str(kind))
    newest: str | None = connection.scalar(
        sa.select(_table.c.sha256).where(mine).order_by(_table.c.number.desc()).limit(1)
    )
    return newest
