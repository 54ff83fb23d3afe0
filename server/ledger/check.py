"""Compares every table of the ledger with what the events' chain commits to (row_seals.py); read-only.

Not covered: `clients`, which the live loop writes over from Flower's own register of nodes at each round; and rows
that were added after the newest event was cut off, for which a head is kept elsewhere (`chain.head`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from server.ledger import chain, row_seals, schema, texts
from server.ledger.records import SEALED, request_id
from unlearning.requests import LEGAL_MOVES, WITHOUT_DELETION, Status, hash_of_text

_PAGE = 1000
_RANGES = (schema.rounds, schema.refusals)
_WHOLE = (schema.fence, schema.federation_facts)


@dataclass(slots=True)
class _Sealed:
    """The hashes in the events: by request that of its row; by table what was sealed; by number that of a text.

    texts: of each the request, the kind and the hash. erased: the numbers of those that were erased.
    """

    requests: dict[int, str] = field(default_factory=dict)
    ranges: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    texts: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    erased: set[int] = field(default_factory=set)


def first_problem(connection: sa.Connection) -> str:
    """Return the first thing that does not fit, in one sentence; empty where all fits."""
    broken = chain.first_broken(connection)
    if broken is not None:
        return (
            f"Event {broken} does not follow from those before it: one was changed, removed or put elsewhere."
        )
    return next(_problems(connection), "")


def _problems(connection: sa.Connection) -> Iterator[str]:
    try:
        sealed = _read(connection)
        yield from _of_requests(connection, sealed)
        yield from _of_samples(connection)
        yield from _of_texts(connection, sealed)
        yield from _of_exclusions(connection, sealed)
        for table in _RANGES:
            yield from _of_rows(connection, table, sealed.ranges.get(table.name, []))
        for table in _WHOLE:
            yield from _of_whole(connection, table, sealed.whole.get(table.name))
        yield from _of_moves(connection)
    except (ValueError, TypeError, LookupError, AssertionError) as exc:
        yield f"A row cannot be read any more ({type(exc).__name__}: {str(exc)[:80]})."


def _read(connection: sa.Connection) -> _Sealed:
    found = _Sealed()
    for row in _pages(connection, schema.events, "sequence"):
        if row.request_number is not None:
            if row_seals.REQUEST_SHA256 in row.detail:
                found.requests[row.request_number] = row.detail[row_seals.REQUEST_SHA256]
            for kind, named in row.detail.get(texts.TEXTS, {}).items():
                found.texts[named["number"]] = (row.request_number, kind, named["sha256"])
            found.erased.update(row.detail.get(texts.ERASED, ()))
        elif row.kind == SEALED:
            table = row.detail["table"]
            if "first" in row.detail:
                found.ranges.setdefault(table, []).append(row.detail)
            else:
                found.whole[table] = row.detail["sha256"]
    return found


def _of_requests(connection: sa.Connection, sealed: _Sealed) -> Iterator[str]:
    missing = set(sealed.requests)
    for row in _pages(connection, schema.requests, "number"):
        if sealed.requests.get(row.number) != row_seals.request_hash(connection, row):
            yield (
                f"Request {request_id(row.number)} is not as its last event left it: its target, samples, submitter, "
                "method, parameters, state, result, exclusion, deadline or hold was changed."
            )
        missing.discard(row.number)
    if missing:
        yield f"Request {request_id(min(missing))} has events, but is gone."


def _of_samples(connection: sa.Connection) -> Iterator[str]:
    table, requests = schema.request_samples, schema.requests
    query = sa.select(requests.c.number, requests.c.num_samples, requests.c.status)
    listed = set(connection.scalars(sa.select(table.c.request_number)))
    for number, num_samples, status in connection.execute(query.order_by(requests.c.number)).all():
        if (number in listed) != (num_samples > 0):
            yield f"The sample ids of request {request_id(number)} are gone, or were added."
        if number not in listed:
            continue
        row = connection.execute(sa.select(table).where(table.c.request_number == number)).one()
        if row.sample_ids is None:
            if Status(status) not in WITHOUT_DELETION:
                yield f"The sample ids of request {request_id(number)} were erased, though it is {status}."
        elif hash_of_text(row.sample_ids) != row.sha256:
            yield f"The sample ids of request {request_id(number)} were changed."


def _of_texts(connection: sa.Connection, sealed: _Sealed) -> Iterator[str]:
    missing = dict(sealed.texts)
    for row in _pages(connection, schema.request_texts, "number"):
        which = f"The {row.kind.replace('_', ' ')} of request {request_id(row.request_number)}"
        if missing.pop(row.number, None) != (row.request_number, row.kind, row.sha256):
            yield f"{which} is not the one of its event: it was changed or put in."
        elif row.text is None:
            if row.salt is not None or row.number not in sealed.erased:
                yield f"{which} was erased past the program: no event says so."
        elif row.number in sealed.erased:
            yield f"{which} was erased, and stands there again."
        elif row.salt is None or texts.commitment(row.salt, row.text) != row.sha256:
            yield f"{which} was changed."
    for number, kind, _ in missing.values():
        yield f"The {kind.replace('_', ' ')} of request {request_id(number)} is gone."


def _of_exclusions(connection: sa.Connection, sealed: _Sealed) -> Iterator[str]:
    """Check that there are exclusions of requests only; their hashes are in those of these."""
    numbers = set(connection.scalars(sa.select(schema.exclusions.c.request_number)))
    for number in sorted(numbers - set(sealed.requests)):
        yield f"There is an exclusion of the request {request_id(number)}, which there is not."


def _of_rows(connection: sa.Connection, table: sa.Table, ranges: list[Mapping[str, Any]]) -> Iterator[str]:
    """Check that each row belongs to one range, and each range has its rows."""
    rows = _pages(connection, table, "sequence")
    row = next(rows, None)
    for part in ranges:
        hashes = []
        while row is not None and row.sequence <= part["last"]:
            if row.sequence < part["first"]:
                break
            hashes.append(row_seals.row_hash(table, row))
            row = next(rows, None)
        if row_seals.hash_of_rows(hashes) != part["sha256"]:
            which = (
                f"{part['first']}" if part["first"] == part["last"] else f"{part['first']} to {part['last']}"
            )
            yield f"Of the table {table.name}, row {which} was changed, removed or put in."
            return
    if row is not None:
        yield f"The table {table.name} has a row {row.sequence} that no event speaks of."


def _of_whole(connection: sa.Connection, table: sa.Table, digest: str | None) -> Iterator[str]:
    if digest is None:
        columns = list(table.c)[1]
        touched = [row for row in connection.execute(sa.select(table)).all() if row._mapping[columns.name]]
        if touched:
            yield f"The table {table.name} has rows that no event speaks of."
    elif row_seals.whole_hash(connection, table) != digest:
        yield f"The table {table.name} is not as it was last written: something in it was changed."


def _of_moves(connection: sa.Connection) -> Iterator[str]:
    table = schema.legal_moves
    found = {(row.from_status, row.to_status) for row in connection.execute(sa.select(table))}
    if found != {(str(source), str(to)) for source, moves in LEGAL_MOVES.items() for to in moves}:
        yield "The table legal_moves, which says what a request may become, was changed."


def _pages(connection: sa.Connection, table: sa.Table, key: str) -> Iterator[sa.Row[Any]]:
    last = -(2**31)
    while True:
        after = sa.select(table).where(table.c[key] > last).order_by(table.c[key]).limit(_PAGE)
        rows = connection.execute(after).all()
        yield from rows
        if len(rows) < _PAGE:
            return
        last = rows[-1]._mapping[key]
