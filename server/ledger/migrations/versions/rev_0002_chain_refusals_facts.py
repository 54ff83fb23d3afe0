"""The second schema: a hash chain over the events, refusals, and facts about the federation.

The chain's columns may not be null, and SQLite cannot add such columns, so the events are copied
into a new table on their way into the chain; nothing of them changes. Stop every process of the
ledger before: one of the first schema cannot write events any more.

`_event_hash` repeats `server.ledger.chain.event_hash`, because a migration imports nothing that
may change; a test checks migrated events with today's function.
"""

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

GENESIS_HASH = "0" * 64
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    _chain_events()
    op.create_table(
        "refusals",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at", TIME, nullable=False),
        sa.Column("caller", sa.String(200), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("call", sa.String(100), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "federation_facts",
        sa.Column("key", sa.String(100), primary_key=True),
        sa.Column("value", sa.JSON, nullable=False),
        sa.Column("at", TIME, nullable=False),
    )
    op.create_index("ix_requests_submitted_by_status", "requests", ["submitted_by", "status"])
    for table in ("events", "refusals"):
        _make_append_only(table)


def downgrade() -> None:
    raise NotImplementedError(
        "The chain and the refusals are evidence; restore a backup of the first schema."
    )


def _chain_events() -> None:
    new = op.create_table(
        "events_chained",
        # Numbers come from the chain, because they are part of what is hashed.
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("request_number", sa.Integer, sa.ForeignKey("requests.number"), nullable=False),
        sa.Column("kind", sa.String(100), nullable=False),
        sa.Column("from_status", sa.String(20), nullable=True),
        sa.Column("to_status", sa.String(20), nullable=True),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("previous_hash", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    columns = [sa.column(column.name, column.type) for column in new.c][:8]
    old = sa.table("events", *columns)
    connection = op.get_bind()
    previous_hash = GENESIS_HASH
    for row in connection.execute(sa.select(old).order_by(old.c.sequence)).all():
        digest = _event_hash(row, previous_hash)
        connection.execute(sa.insert(new).values(**row._mapping, previous_hash=previous_hash, hash=digest))
        previous_hash = digest
    op.drop_table("events")  # its triggers go with it
    op.rename_table("events_chained", "events")
    op.create_index("ix_events_request_number", "events", ["request_number"])
    op.create_index("events_never_fork", "events", ["previous_hash"], unique=True)


def _event_hash(row: sa.Row[Any], previous_hash: str) -> str:
    at: datetime = row.at
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    content = {
        "sequence": row.sequence,
        "request_number": row.request_number,
        "kind": row.kind,
        "from_status": row.from_status,
        "to_status": row.to_status,
        "actor": row.actor,
        "detail": row.detail,
        "at": at.isoformat(timespec="microseconds"),
        "previous_hash": previous_hash,
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _make_append_only(table: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    refusal = f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    op.execute(f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refusal}")
    op.execute(f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {refusal}")
    # INSERT OR REPLACE would delete the old row without asking the triggers above.
    same = "sequence = NEW.sequence"
    if table == "events":
        same += " OR previous_hash = NEW.previous_hash"
    op.execute(
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {same}) {refusal}"
    )
