"""What several migrations have in common: rules that the database keeps, and the events' chain.

It is fixed for good, as the migrations are: what a new one needs otherwise it says itself. `row_hash` and the others
repeat `server.ledger.seals` and `server.ledger.chain`, because a migration imports nothing that may change; tests check
migrated ledgers with today's functions.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from alembic import op

TIME = sa.DateTime(timezone=True)
GENESIS_HASH = "0" * 64
ASKED_FOR = (
    *("number", "idempotency_key", "target_key", "client_id", "method", "submitted_by", "submitted_role"),
    "created_at",
)
"""The columns of a request that never change since the third schema, JSON apart."""
ASKED_FOR_STAYS = "what a request asks for never changes"
SAMPLES_STAY = "the ids of samples never change"
# Each of these is an error since the sixth schema; the last part of each is the sentence.
DEADLINE_RULES = {
    "requests_extended_once": (
        "NEW.extended_days <> OLD.extended_days AND (OLD.extended_days <> 0 OR NEW.extended_days NOT BETWEEN 1 AND 60)",
        "a deadline is extended once, by 1 to 60 days",
    ),
    "requests_due_as_extended": (
        "{due_on} <> NEW.due_on",
        "a deadline moves by its extension only",
    ),
    "requests_held_wait": (
        "NEW.is_held AND NEW.status <> OLD.status AND NEW.status IN ('scheduled', 'unlearning')",
        "a request that is held does not begin",
    ),
}


def is_sqlite() -> bool:
    return op.get_bind().dialect.name == "sqlite"


# Rules


def refuse(name: str, when: str, condition: str, message: str) -> None:
    """Add a trigger of SQLite that refuses a change, only where the condition holds if there is one."""
    op.execute(
        f"CREATE TRIGGER {name} BEFORE {when} "
        f"{f'WHEN {condition} ' if condition else ''}"
        f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )


def refuse_statement(name: str, when: str) -> None:
    """Add a trigger of PostgreSQL that refuses a change always."""
    op.execute(f"CREATE TRIGGER {name} BEFORE {when} FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()")


def check_each_row(name: str, when: str, function: str) -> None:
    """Add a trigger of PostgreSQL that asks a function about each row."""
    op.execute(f"CREATE TRIGGER {name} BEFORE {when} FOR EACH ROW EXECUTE FUNCTION {function}()")


def is_changed(columns: Iterable[str], differs: str = "IS NOT") -> str:
    """Return the condition that one of these columns changes; PostgreSQL's `differs` is IS DISTINCT FROM."""
    return " OR ".join(f"OLD.{column} {differs} NEW.{column}" for column in columns)


def refuse_other_request(columns: Iterable[str]) -> None:
    """Let SQLite refuse a change of these columns of a request."""
    refuse("requests_immutable", "UPDATE ON requests", is_changed(columns), ASKED_FOR_STAYS)


def refuse_other_deadline(columns: Iterable[str]) -> None:
    """Let PostgreSQL refuse a change of these columns of a request, and what the rules of deadlines forbid."""
    due_on = "OLD.due_on + (NEW.extended_days - OLD.extended_days)"
    rules = {is_changed(columns, "IS DISTINCT FROM"): ASKED_FOR_STAYS} | {
        condition.format(due_on=due_on): message for condition, message in DEADLINE_RULES.values()
    }
    checks = "".join(
        f"IF {condition} THEN RAISE EXCEPTION '{message}' USING ERRCODE = 'check_violation'; END IF; "
        for condition, message in rules.items()
    )
    # The function of the third schema goes on under its name.
    op.execute(
        "CREATE OR REPLACE FUNCTION check_submitted_role() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {checks} RETURN NEW; END $$"
    )


def refuse_other_samples(over: str) -> None:
    """Let sample ids only be hashed, and erased where the request is over, a condition."""
    if is_sqlite():
        given_back = (
            "NEW.sample_ids IS NULL AND NEW.sha256 IS OLD.sha256 AND NEW.is_keyed IS OLD.is_keyed AND EXISTS "
            f"(SELECT 1 FROM requests WHERE number = OLD.request_number AND {over})"
        )
        keyed = "OLD.is_keyed = 0 AND NEW.is_keyed = 1"
        allowed = f"NEW.request_number = OLD.request_number AND (({given_back}) OR ({keyed}))"
        refuse("request_samples_no_update", "UPDATE ON request_samples", f"NOT ({allowed})", SAMPLES_STAY)
        return
    op.execute(
        f"""
        CREATE OR REPLACE FUNCTION check_request_samples() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.request_number = OLD.request_number AND (
                   (NEW.sample_ids IS NULL AND NEW.sha256 = OLD.sha256 AND NEW.is_keyed = OLD.is_keyed
                    AND EXISTS (SELECT 1 FROM requests WHERE number = OLD.request_number AND {over}))
                OR (NEW.is_keyed AND NOT OLD.is_keyed)) THEN
                RETURN NEW;
            END IF;
            RAISE EXCEPTION '{SAMPLES_STAY}' USING ERRCODE = 'check_violation';
        END $$
        """
    )


def make_append_only(table: str, same: str) -> None:
    """Refuse every change of a table's rows. same: the condition that a row is there already."""
    if not is_sqlite():
        refuse_statement(f"{table}_append_only", f"UPDATE OR DELETE OR TRUNCATE ON {table}")
        return
    message = f"{table} is append-only"
    refuse(f"{table}_no_update", f"UPDATE ON {table}", "", message)
    refuse(f"{table}_no_delete", f"DELETE ON {table}", "", message)
    # INSERT OR REPLACE would delete the old row without asking the triggers above.
    known = f"EXISTS (SELECT 1 FROM {table} WHERE {same})"
    refuse(f"{table}_no_replace", f"INSERT ON {table}", known, message)


SAME_EVENT = "sequence = NEW.sequence OR previous_hash = NEW.previous_hash"


def forbid_new_moves() -> None:
    """Let nothing but a migration add a legal move."""
    if is_sqlite():
        message = "legal_moves changes by migration only"
        refuse("legal_moves_no_insert", "INSERT ON legal_moves", "", message)
    else:
        refuse_statement("legal_moves_no_insert", "INSERT ON legal_moves")


def add_moves(moves: Iterable[tuple[str, str]]) -> None:
    """Add legal moves, each from one state to another, past the rule against it."""
    op.execute("DROP TRIGGER legal_moves_no_insert" + ("" if is_sqlite() else " ON legal_moves"))
    insert_moves(moves)
    forbid_new_moves()


def insert_moves(moves: Iterable[tuple[str, str]]) -> None:
    table = sa.table("legal_moves", sa.column("from_status"), sa.column("to_status"))
    op.bulk_insert(table, [{"from_status": source, "to_status": to} for source, to in moves])


# The chain


def has_rows(name: str) -> bool:
    """Tell whether a table has any row: a new ledger's have none, and to reflect one takes milliseconds."""
    return op.get_bind().scalar(sa.text(f"SELECT 1 FROM {name} LIMIT 1")) is not None


def reflect(name: str) -> sa.Table:
    """Return a table as it stands in the database now."""
    return sa.Table(name, sa.MetaData(), autoload_with=op.get_bind(), resolve_fks=False)


def create_events(name: str, *, need_request: bool) -> sa.Table:
    """Create a table of chained events. need_request: whether each has a request, none being the federation's."""
    return op.create_table(
        name,
        # Numbers come from the chain, because they are part of what is hashed.
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("request_number", sa.Integer, sa.ForeignKey("requests.number"), nullable=not need_request),
        sa.Column("kind", sa.String(100), nullable=False),
        sa.Column("from_status", sa.String(20), nullable=True),
        sa.Column("to_status", sa.String(20), nullable=True),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("previous_hash", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )


def put_in_place_of_events(name: str) -> None:
    """Let a table of chained events take the place of the one that there is."""
    op.drop_table("events")  # its triggers go with it
    op.rename_table(name, "events")
    op.create_index("ix_events_request_number", "events", ["request_number"])
    op.create_index("events_never_fork", "events", ["previous_hash"], unique=True)


def request_key() -> sa.Column[int]:
    """Return the key of a table that has at most one row of each request."""
    request = sa.ForeignKey("requests.number")
    return sa.Column("request_number", sa.Integer, request, primary_key=True, autoincrement=False)


class Chain:
    """The end of the events' chain, where a migration adds its own."""

    def __init__(self) -> None:
        self._connection = op.get_bind()
        newest = sa.text("SELECT sequence, hash FROM events ORDER BY sequence DESC LIMIT 1")
        row = self._connection.execute(newest).one_or_none()
        self.is_empty = row is None
        self._sequence: int = 0 if row is None else row.sequence
        self._hash: str = GENESIS_HASH if row is None else row.hash
        self._now = datetime.now(UTC)

    @cached_property
    def _events(self) -> sa.Table:
        return reflect("events")

    @cached_property
    def _exclusions(self) -> sa.Table:
        return reflect("exclusions")

    def append(self, number: int | None, kind: str, detail: Mapping[str, Any]) -> None:
        values = {
            "sequence": self._sequence + 1,
            "request_number": number,
            "kind": kind,
            "from_status": None,
            "to_status": None,
            "actor": "migration",
            "detail": detail,
            "previous_hash": self._hash,
        }
        digest = row_hash({**values, "at": self._now})
        at = self._now.replace(tzinfo=None) if is_sqlite() else self._now
        self._connection.execute(sa.insert(self._events).values(**values, at=at, hash=digest))
        self._sequence, self._hash = self._sequence + 1, digest

    def append_request(self, row: sa.Row[Any], kind: str, samples_sha256: str | None) -> None:
        """Commit to a request's row with the hash of its sample ids, and with its exclusion."""
        at = self._exclusions.c.at
        excluded = sa.select(at).where(self._exclusions.c.request_number == row.number)
        more = {"samples_sha256": samples_sha256, "excluded_at": self._connection.scalar(excluded)}
        self.append(row.number, kind, {"request_sha256": row_hash({**row._mapping, **more})})


def pages(name: str, key: str) -> Iterator[sa.Row[Any]]:
    """Yield the rows of a table in the order of its key, a thousand in memory at once."""
    if not has_rows(name):
        return
    table, last = reflect(name), 0
    while True:
        after = sa.select(table).where(table.c[key] > last).order_by(table.c[key]).limit(1000)
        rows = op.get_bind().execute(after).all()
        yield from rows
        if len(rows) < 1000:
            return
        last = rows[-1]._mapping[key]


def hash_of_rows(rows: Iterable[sa.Row[Any]]) -> str:
    """Compute SHA-256 over the hashes of rows in their order."""
    whole = hashlib.sha256()
    for row in rows:
        whole.update(row_hash(row._mapping).encode("ascii"))
    return whole.hexdigest()


def row_hash(values: Mapping[Any, Any]) -> str:
    """Compute SHA-256 of a row by its columns' names, as canonical JSON (sorted keys, no blanks, ASCII, UTC)."""
    plain = {name: _plain(value) for name, value in values.items()}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return utc(value).isoformat(timespec="microseconds")
    return value.isoformat() if isinstance(value, date) else value


def utc(value: datetime) -> datetime:
    """Return a time as of UTC; SQLite keeps none's zone."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
