"""The fifth schema: sample ids in a table of their own, and all rows bound to the events' chain.

Ids of requests that were cancelled or have failed for good are erased on their way. The others keep the form in which
they stand here: `Ledger.open` hashes them, because a migration has no key. Until then no hash of them is kept either,
which would tell who guesses that he is right.

What stands in requests, rounds, refusals, fence and facts is taken over as it is: events `sealed`, and one event
`taken-over` for each request, commit to it. What was changed before cannot be found.

`_row_hash` and the others repeat `server.ledger.seals` and `server.ledger.chain`, because a migration imports nothing
that may change; a test checks a migrated ledger with today's functions.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

GENESIS_HASH = "0" * 64
TIME = sa.DateTime(timezone=True)
IMMUTABLE = (
    "number",
    "idempotency_key",
    "target_key",
    "client_id",
    "method",
    "submitted_by",
    "submitted_role",
    "created_at",
    "num_samples",
)
IMMUTABLE_JSON = ("target", "parameters")
OVER = "status IN ('cancelled', 'failed')"


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    op.execute("DROP TRIGGER requests_immutable" if is_sqlite else "DROP TRIGGER requests_check ON requests")
    op.add_column("requests", sa.Column("num_samples", sa.Integer, nullable=False, server_default="0"))
    op.create_index("ix_requests_submitted_by_created_at", "requests", ["submitted_by", "created_at"])
    op.create_table(
        "request_samples",
        sa.Column(
            "request_number",
            sa.Integer,
            sa.ForeignKey("requests.number"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("is_keyed", sa.Boolean, nullable=False),
        sa.Column("sample_ids", sa.Text, nullable=True),
    )
    _move_ids()
    if is_sqlite:
        _sqlite_events()
        _sqlite_triggers()
    else:
        op.alter_column("requests", "num_samples", server_default=None)
        op.alter_column("events", "request_number", nullable=True)
        _postgresql_triggers()
    _take_over()


def downgrade() -> None:
    raise NotImplementedError(
        "Erased ids do not come back, and the chain is evidence; restore a backup of the fourth schema."
    )


def _move_ids() -> None:
    connection = op.get_bind()
    requests = sa.table(
        "requests",
        sa.column("number", sa.Integer),
        sa.column("target", sa.JSON),
        sa.column("status", sa.String),
        sa.column("retryable", sa.Boolean),
        sa.column("num_samples", sa.Integer),
    )
    samples = sa.table(
        "request_samples",
        sa.column("request_number", sa.Integer),
        sa.column("sha256", sa.String),
        sa.column("is_keyed", sa.Boolean),
        sa.column("sample_ids", sa.Text),
    )
    for number in connection.scalars(sa.select(requests.c.number)).all():  # one list in memory at a time
        row = connection.execute(sa.select(requests).where(requests.c.number == number)).one()
        target = dict(row.target)
        ids = target.pop("sample_ids", [])
        values = {"target": target, "num_samples": len(ids)}
        connection.execute(sa.update(requests).where(requests.c.number == number).values(values))
        if not ids:
            continue
        is_over = _is_over(row)
        text = json.dumps(sorted(ids), separators=(",", ":"), ensure_ascii=False)
        connection.execute(
            sa.insert(samples).values(
                request_number=number, sha256="", is_keyed=is_over, sample_ids=None if is_over else text
            )
        )


def _is_over(row: sa.Row[Any]) -> bool:
    return row.status == "cancelled" or (row.status == "failed" and not row.retryable)


def _sqlite_events() -> None:
    """Copy the events as they are: SQLite cannot let a column be null afterwards."""
    op.create_table(
        "events_of_all",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("request_number", sa.Integer, sa.ForeignKey("requests.number"), nullable=True),
        sa.Column("kind", sa.String(100), nullable=False),
        sa.Column("from_status", sa.String(20), nullable=True),
        sa.Column("to_status", sa.String(20), nullable=True),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("previous_hash", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    columns = "sequence, request_number, kind, from_status, to_status, actor, detail, at, previous_hash, hash"
    op.execute(f"INSERT INTO events_of_all ({columns}) SELECT {columns} FROM events ORDER BY sequence")
    op.drop_table("events")  # its triggers go with it
    op.rename_table("events_of_all", "events")
    op.create_index("ix_events_request_number", "events", ["request_number"])
    op.create_index("events_never_fork", "events", ["previous_hash"], unique=True)


def _sqlite_triggers() -> None:
    def refuse(name: str, when: str, condition: str, message: str) -> None:
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} {f'WHEN {condition} ' if condition else ''}"
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )

    changed = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in IMMUTABLE + IMMUTABLE_JSON)
    refuse("requests_immutable", "UPDATE ON requests", changed, "what a request asks for never changes")
    refuse("events_no_update", "UPDATE ON events", "", "events is append-only")
    refuse("events_no_delete", "DELETE ON events", "", "events is append-only")
    same = "EXISTS (SELECT 1 FROM events WHERE sequence = NEW.sequence OR previous_hash = NEW.previous_hash)"
    refuse("events_no_replace", "INSERT ON events", same, "events is append-only")
    message = "the ids of samples never change"
    known = "EXISTS (SELECT 1 FROM request_samples WHERE request_number = NEW.request_number)"
    refuse("request_samples_no_delete", "DELETE ON request_samples", "", message)
    refuse("request_samples_no_replace", "INSERT ON request_samples", known, message)
    given_back = (
        "NEW.sample_ids IS NULL AND NEW.sha256 IS OLD.sha256 AND NEW.is_keyed IS OLD.is_keyed AND EXISTS "
        f"(SELECT 1 FROM requests WHERE number = OLD.request_number AND {OVER})"
    )
    keyed = "OLD.is_keyed = 0 AND NEW.is_keyed = 1"
    allowed = f"NEW.request_number = OLD.request_number AND (({given_back}) OR ({keyed}))"
    refuse("request_samples_no_update", "UPDATE ON request_samples", f"NOT ({allowed})", message)


def _postgresql_triggers() -> None:
    op.execute(
        "CREATE TRIGGER requests_check BEFORE INSERT OR UPDATE ON requests "
        "FOR EACH ROW EXECUTE FUNCTION check_request()"
    )
    op.execute(
        """
        CREATE OR REPLACE FUNCTION check_submitted_role() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF OLD.submitted_role IS DISTINCT FROM NEW.submitted_role
               OR OLD.num_samples IS DISTINCT FROM NEW.num_samples THEN
                RAISE EXCEPTION 'what a request asks for never changes' USING ERRCODE = 'check_violation';
            END IF;
            RETURN NEW;
        END $$
        """
    )
    op.execute(
        f"""
        CREATE FUNCTION check_request_samples() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.request_number = OLD.request_number AND (
                   (NEW.sample_ids IS NULL AND NEW.sha256 = OLD.sha256 AND NEW.is_keyed = OLD.is_keyed
                    AND EXISTS (SELECT 1 FROM requests WHERE number = OLD.request_number AND {OVER}))
                OR (NEW.is_keyed AND NOT OLD.is_keyed)) THEN
                RETURN NEW;
            END IF;
            RAISE EXCEPTION 'the ids of samples never change' USING ERRCODE = 'check_violation';
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER request_samples_check BEFORE UPDATE ON request_samples "
        "FOR EACH ROW EXECUTE FUNCTION check_request_samples()"
    )
    op.execute(
        "CREATE TRIGGER request_samples_no_delete BEFORE DELETE OR TRUNCATE ON request_samples "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )


# The chain

_requests = sa.table(
    "requests",
    sa.column("number", sa.Integer),
    sa.column("idempotency_key", sa.String),
    sa.column("target_key", sa.String),
    sa.column("target", sa.JSON),
    sa.column("client_id", sa.String),
    sa.column("method", sa.String),
    sa.column("parameters", sa.JSON),
    sa.column("submitted_by", sa.String),
    sa.column("status", sa.String),
    sa.column("reason", sa.Text),
    sa.column("retryable", sa.Boolean),
    sa.column("attempts", sa.Integer),
    sa.column("created_at", TIME),
    sa.column("updated_at", TIME),
    sa.column("result", sa.JSON),
    sa.column("submitted_role", sa.String),
    sa.column("num_samples", sa.Integer),
)
_rounds = sa.table(
    "rounds",
    sa.column("sequence", sa.Integer),
    sa.column("round", sa.Integer),
    sa.column("kind", sa.String),
    sa.column("request_ids", sa.JSON),
    sa.column("metrics", sa.JSON),
    sa.column("at", TIME),
)
_refusals = sa.table(
    "refusals",
    sa.column("sequence", sa.Integer),
    sa.column("at", TIME),
    sa.column("caller", sa.String),
    sa.column("role", sa.String),
    sa.column("call", sa.String),
    sa.column("reason", sa.Text),
    sa.column("detail", sa.JSON),
)
_fence = sa.table(
    "fence",
    sa.column("id", sa.Integer),
    sa.column("token", sa.Integer),
    sa.column("holder", sa.String),
    sa.column("acquired_at", TIME),
)
_facts = sa.table(
    "federation_facts", sa.column("key", sa.String), sa.column("value", sa.JSON), sa.column("at", TIME)
)
_exclusions = sa.table("exclusions", sa.column("request_number", sa.Integer), sa.column("at", TIME))
_events = sa.table(
    "events",
    sa.column("sequence", sa.Integer),
    sa.column("request_number", sa.Integer),
    sa.column("kind", sa.String),
    sa.column("from_status", sa.String),
    sa.column("to_status", sa.String),
    sa.column("actor", sa.String),
    sa.column("detail", sa.JSON),
    sa.column("at", TIME),
    sa.column("previous_hash", sa.String),
    sa.column("hash", sa.String),
)


def _take_over() -> None:
    """Commit to what stands in the ledger; to nothing where it is new."""
    connection = op.get_bind()
    chain = _Chain(connection)
    for row in _pages(_requests, "number"):
        form = "keyed:" if _is_over(row) else "plain:"
        excluded = sa.select(_exclusions.c.at).where(_exclusions.c.request_number == row.number)
        more = {
            "samples_sha256": form if row.num_samples else None,
            "excluded_at": connection.scalar(excluded),
        }
        digest = _row_hash({**row._mapping, **more})
        chain.append(row.number, "taken-over", {"request_sha256": digest})
    for table in (_rounds, _refusals):
        hashes, first, last = hashlib.sha256(), None, None
        for row in _pages(table, "sequence"):
            first, last = row.sequence if first is None else first, row.sequence
            hashes.update(_row_hash(row._mapping).encode("ascii"))
        if first is not None:
            detail = {"table": table.name, "first": first, "last": last, "sha256": hashes.hexdigest()}
            chain.append(None, "sealed", detail)
    fence = connection.execute(sa.select(_fence)).all()
    if any(row.token for row in fence):
        chain.append(None, "sealed", {"table": "fence", "sha256": _hash_of(fence)})
    facts = sorted(connection.execute(sa.select(_facts)).all(), key=lambda row: row.key)
    if facts:
        chain.append(None, "sealed", {"table": "federation_facts", "sha256": _hash_of(facts)})


class _Chain:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        newest = sa.select(_events.c.sequence, _events.c.hash).order_by(_events.c.sequence.desc()).limit(1)
        row = connection.execute(newest).one_or_none()
        self._sequence: int = 0 if row is None else row.sequence
        self._hash: str = GENESIS_HASH if row is None else row.hash
        self._now = datetime.now(UTC)

    def append(self, number: int | None, kind: str, detail: dict[str, Any]) -> None:
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
        digest = _row_hash({**values, "at": self._now})
        at = self._now.replace(tzinfo=None) if self._connection.dialect.name == "sqlite" else self._now
        self._connection.execute(sa.insert(_events).values(**values, at=at, hash=digest))
        self._sequence, self._hash = self._sequence + 1, digest


def _pages(table: sa.TableClause, key: str) -> Iterator[sa.Row[Any]]:
    last = 0
    while True:
        after = sa.select(table).where(table.c[key] > last).order_by(table.c[key]).limit(1000)
        rows = op.get_bind().execute(after).all()
        yield from rows
        if len(rows) < 1000:
            return
        last = rows[-1]._mapping[key]


def _hash_of(rows: Iterable[sa.Row[Any]]) -> str:
    whole = hashlib.sha256()
    for row in rows:
        whole.update(_row_hash(row._mapping).encode("ascii"))
    return whole.hexdigest()


def _row_hash(values: Any) -> str:
    plain = {name: _plain(value) for name, value in values.items()}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _plain(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return value.isoformat(timespec="microseconds")
