"""The second schema: a hash chain over the events, refusals, and facts about the federation.

The chain's columns may not be null, and SQLite cannot add such columns, so the events are copied
into a new table on their way into the chain; nothing of them changes. Stop every process of the
ledger before: one of the first schema cannot write events any more.
"""

import sqlalchemy as sa
from alembic import op

from server.ledger.migrations.shared import (
    GENESIS_HASH,
    SAME_EVENT,
    TIME,
    create_events,
    make_append_only,
    put_in_place_of_events,
    row_hash,
)

revision = "0002"
down_revision = "0001"


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
    make_append_only("events", SAME_EVENT)
    make_append_only("refusals", "sequence = NEW.sequence")


def downgrade() -> None:
    raise NotImplementedError(
        "The chain and the refusals are evidence; restore a backup of the first schema."
    )


def _chain_events() -> None:
    new = create_events("events_chained", need_request=True)
    columns = [sa.column(column.name, column.type) for column in new.c][:8]
    old = sa.table("events", *columns)
    connection = op.get_bind()
    previous_hash = GENESIS_HASH
    for row in connection.execute(sa.select(old).order_by(old.c.sequence)).all():
        digest = row_hash({**row._mapping, "previous_hash": previous_hash})
        connection.execute(sa.insert(new).values(**row._mapping, previous_hash=previous_hash, hash=digest))
        previous_hash = digest
    put_in_place_of_events("events_chained")
