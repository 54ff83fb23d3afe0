"""The first schema: requests and their legal moves, events, exclusions, clients, rounds, the fence.

A migration never changes once it is released, so it imports neither the tables nor the states of
today; tests compare both with what it creates.
"""

import sqlalchemy as sa
from alembic import op

from server.ledger.migrations.shared import (
    ASKED_FOR_STAYS,
    TIME,
    check_each_row,
    forbid_new_moves,
    insert_moves,
    is_changed,
    is_sqlite,
    refuse,
    refuse_other_request,
    refuse_statement,
    request_key,
)

revision = "0001"
down_revision = None

OPEN = "('received', 'recovering', 'scheduled', 'unlearning', 'verifying')"
LEGAL_MOVES = {
    "received": ("scheduled", "failed", "cancelled"),
    "scheduled": ("unlearning", "failed", "cancelled"),
    "unlearning": ("recovering", "scheduled", "failed"),
    "recovering": ("verifying",),
    "verifying": ("completed",),
    "failed": ("scheduled",),
}
APPEND_ONLY = ("events", "exclusions", "legal_moves")
IMMUTABLE = (
    "number",
    "idempotency_key",
    "target_key",
    "client_id",
    "method",
    "submitted_by",
    "created_at",
)
IMMUTABLE_JSON = ("target", "parameters")

NO_SUCH_MOVE = (
    "NOT EXISTS (SELECT 1 FROM legal_moves WHERE from_status = OLD.status AND to_status = NEW.status)"
)


def upgrade() -> None:
    _create_tables()
    insert_moves((source, to) for source, destinations in LEGAL_MOVES.items() for to in destinations)
    op.execute("INSERT INTO fence (id, token, holder) VALUES (1, 0, '')")
    if is_sqlite():
        _sqlite_triggers()
    else:
        _postgresql_triggers()


def downgrade() -> None:
    raise NotImplementedError("The first schema has nothing before it; keep a copy and start a new ledger.")


def _create_tables() -> None:
    op.create_table(
        "legal_moves",
        sa.Column("from_status", sa.String(20), primary_key=True),
        sa.Column("to_status", sa.String(20), primary_key=True),
    )
    op.create_table(
        "requests",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("idempotency_key", sa.String(200), nullable=False, unique=True),
        sa.Column("target_key", sa.String(250), nullable=False),
        sa.Column("target", sa.JSON, nullable=False),
        sa.Column("client_id", sa.String(200), nullable=True),
        sa.Column("method", sa.String(100), nullable=False),
        sa.Column("parameters", sa.JSON, nullable=False),
        sa.Column("submitted_by", sa.String(200), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("retryable", sa.Boolean, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.Column("result", sa.JSON, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_requests_client_id", "requests", ["client_id"])
    op.create_index("ix_requests_status", "requests", ["status"])
    op.execute(
        f"CREATE UNIQUE INDEX one_open_request_per_target ON requests (target_key) WHERE status IN {OPEN}"
    )
    op.create_table(
        "events",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("request_number", sa.Integer, sa.ForeignKey("requests.number"), nullable=False),
        sa.Column("kind", sa.String(100), nullable=False),
        sa.Column("from_status", sa.String(20), nullable=True),
        sa.Column("to_status", sa.String(20), nullable=True),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_request_number", "events", ["request_number"])
    op.create_table(
        "exclusions",
        request_key(),
        sa.Column("at", TIME, nullable=False),
    )
    op.create_table(
        "clients",
        sa.Column("client_id", sa.String(200), primary_key=True),
        sa.Column("node_name", sa.Text, nullable=False),
        sa.Column("public_key_hex", sa.Text, nullable=False),
        sa.Column("online", sa.Boolean, nullable=False),
        sa.Column("last_seen", TIME, nullable=True),
    )
    op.create_table(
        "rounds",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("request_ids", sa.JSON, nullable=False),
        sa.Column("metrics", sa.JSON, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "fence",
        sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1", name="one_fence"), primary_key=True),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("acquired_at", TIME, nullable=True),
    )


def _sqlite_triggers() -> None:
    for table in APPEND_ONLY:
        refuse(f"{table}_no_update", f"UPDATE ON {table}", "", f"{table} is append-only")
        refuse(f"{table}_no_delete", f"DELETE ON {table}", "", f"{table} is append-only")
    # INSERT OR REPLACE would delete the old row without asking the triggers above.
    for table, key in (("events", "sequence"), ("exclusions", "request_number")):
        refuse(
            f"{table}_no_replace",
            f"INSERT ON {table}",
            f"EXISTS (SELECT 1 FROM {table} WHERE {key} = NEW.{key})",
            f"{table} is append-only",
        )
    forbid_new_moves()
    refuse(
        "requests_no_replace",
        "INSERT ON requests",
        "EXISTS (SELECT 1 FROM requests WHERE number = NEW.number "
        "OR idempotency_key = NEW.idempotency_key "
        f"OR (target_key = NEW.target_key AND status IN {OPEN}))",
        "this request exists, or one for the same target is open",
    )
    refuse(
        "requests_no_update_or_replace",
        "UPDATE ON requests",
        f"NEW.status IN {OPEN} AND EXISTS (SELECT 1 FROM requests "
        f"WHERE target_key = NEW.target_key AND number <> NEW.number AND status IN {OPEN})",
        "a request for the same target is open",
    )
    refuse("requests_no_delete", "DELETE ON requests", "", "requests are never deleted")
    refuse(
        "requests_start_received",
        "INSERT ON requests",
        "NEW.status <> 'received'",
        "a request starts as received",
    )
    refuse(
        "requests_legal_moves",
        "UPDATE ON requests",
        f"OLD.status <> NEW.status AND {NO_SUCH_MOVE}",
        "illegal move of a request",
    )
    refuse_other_request(IMMUTABLE + IMMUTABLE_JSON)


def _postgresql_triggers() -> None:
    op.execute(
        """
        CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION '% on % is refused: it is append-only', TG_OP, TG_TABLE_NAME
                 USING ERRCODE = 'check_violation';
        END $$
        """
    )
    for table in APPEND_ONLY:
        refuse_statement(f"{table}_append_only", f"UPDATE OR DELETE OR TRUNCATE ON {table}")
    forbid_new_moves()
    refuse_statement("requests_no_delete", "DELETE OR TRUNCATE ON requests")
    changed = " OR ".join(
        [is_changed(IMMUTABLE, "IS DISTINCT FROM")]
        + [f"OLD.{column}::text IS DISTINCT FROM NEW.{column}::text" for column in IMMUTABLE_JSON]
    )
    op.execute(
        f"""
        CREATE FUNCTION check_request() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'INSERT' THEN
                IF NEW.status <> 'received' THEN
                    RAISE EXCEPTION 'a request starts as received' USING ERRCODE = 'check_violation';
                END IF;
                RETURN NEW;
            END IF;
            IF OLD.status <> NEW.status AND {NO_SUCH_MOVE} THEN
                RAISE EXCEPTION 'illegal move of a request' USING ERRCODE = 'check_violation';
            END IF;
            IF {changed} THEN
                RAISE EXCEPTION '{ASKED_FOR_STAYS}' USING ERRCODE = 'check_violation';
            END IF;
            RETURN NEW;
        END $$
        """
    )
    check_each_row("requests_check", "INSERT OR UPDATE ON requests", "check_request")
