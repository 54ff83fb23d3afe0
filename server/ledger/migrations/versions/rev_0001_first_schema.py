"""The first schema of the ledger: its tables, and the rules that the database itself keeps.

A migration never changes once it is released, so it imports neither the tables nor the states of today; tests compare
both with what it creates.
"""

from collections.abc import Iterable

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TIME = sa.DateTime(timezone=True)
OPEN = "('received', 'recovering', 'scheduled', 'unlearning', 'verifying')"
OVER = "('cancelled', 'failed', 'refused')"
LEGAL_MOVES = {
    "received": ("scheduled", "failed", "cancelled", "refused"),
    "scheduled": ("unlearning", "failed", "cancelled", "refused"),
    "unlearning": ("recovering", "scheduled", "failed"),
    "recovering": ("verifying", "failed"),
    "verifying": ("completed",),
    "failed": ("scheduled", "refused"),
}
APPEND_ONLY = {
    "events": "sequence = NEW.sequence OR previous_hash = NEW.previous_hash",
    "exclusions": "request_number = NEW.request_number",
    "refusals": "sequence = NEW.sequence",
    "legal_moves": "from_status = NEW.from_status AND to_status = NEW.to_status",
}
"""The tables whose rows never change, each with the condition that a row is there already."""
IMMUTABLE = (
    *("number", "idempotency_key", "target_key", "client_id", "method", "submitted_by", "submitted_role"),
    *("created_at", "num_samples", "received_on"),
)
IMMUTABLE_JSON = ("target", "parameters")

NO_SUCH_MOVE = (
    "OLD.status <> NEW.status AND "
    "NOT EXISTS (SELECT 1 FROM legal_moves WHERE from_status = OLD.status AND to_status = NEW.status)"
)
IS_OVER = f"EXISTS (SELECT 1 FROM requests WHERE number = OLD.request_number AND status IN {OVER})"
ASKED_FOR_STAYS = "what a request asks for never changes"
SAMPLES_STAY = "the ids of samples never change"
TEXTS_STAY = "what was written is erased, not changed"
# {due_on}: how each database writes the day that the extension gives.
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


def upgrade() -> None:
    _create_requests()
    _create_what_belongs_to_requests()
    _create_what_belongs_to_the_federation()
    moves = op.create_table(
        "legal_moves",
        sa.Column("from_status", sa.String(20), primary_key=True),
        sa.Column("to_status", sa.String(20), primary_key=True),
    )
    op.bulk_insert(
        moves,
        [{"from_status": source, "to_status": to} for source, ends in LEGAL_MOVES.items() for to in ends],
    )
    op.execute("INSERT INTO fence (id, token, holder) VALUES (1, 0, '')")
    if op.get_bind().dialect.name == "sqlite":
        _sqlite_rules()
    else:
        _postgresql_rules()


def downgrade() -> None:
    raise NotImplementedError("The first schema has nothing before it; keep a copy and start a new ledger.")


def _create_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("idempotency_key", sa.String(200), nullable=False),
        sa.Column("target_key", sa.String(250), nullable=False),
        sa.Column("target", sa.JSON, nullable=False),
        sa.Column("client_id", sa.String(200), nullable=True),
        sa.Column("method", sa.String(100), nullable=False),
        sa.Column("parameters", sa.JSON, nullable=False),
        sa.Column("submitted_by", sa.String(200), nullable=False),
        sa.Column("submitted_role", sa.String(20), nullable=True),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("retryable", sa.Boolean, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.Column("result", sa.JSON, nullable=False),
        sa.Column("num_samples", sa.Integer, nullable=False),
        sa.Column("received_on", sa.Date, nullable=False),
        sa.Column("due_on", sa.Date, nullable=False),
        sa.Column("extended_days", sa.Integer, nullable=False),
        sa.Column("ground", sa.String(1), nullable=True),
        sa.Column("is_held", sa.Boolean, nullable=False),
        sqlite_autoincrement=True,
    )
    op.execute(
        f"CREATE UNIQUE INDEX one_open_request_per_target ON requests (target_key) WHERE status IN {OPEN}"
    )
    # A key belongs to its submitter, who is a role and a name. NULL never equals NULL in a unique index.
    by_key, without_role = ["submitted_by", "idempotency_key"], sa.text("submitted_role IS NULL")
    op.create_index("one_request_per_key", "requests", [*by_key, "submitted_role"], unique=True)
    op.create_index(
        "one_request_per_key_without_role",
        "requests",
        by_key,
        unique=True,
        sqlite_where=without_role,
        postgresql_where=without_role,
    )
    for columns in (
        ("client_id",),
        ("status",),
        ("due_on",),
        ("submitted_by", "status"),
        ("submitted_by", "created_at"),
    ):
        op.create_index(f"ix_requests_{'_'.join(columns)}", "requests", columns)


def _create_what_belongs_to_requests() -> None:
    op.create_table(
        "request_samples",
        _request_key(),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("sample_ids", sa.Text, nullable=True),
    )
    op.create_table(
        "request_texts",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("request_number", sa.Integer, sa.ForeignKey("requests.number"), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("salt", sa.String(64), nullable=True),
        sa.Column("text", sa.Text, nullable=True),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_request_texts_request_number", "request_texts", ["request_number"])
    op.create_table(
        "events",
        # Numbers come from the chain, because they are part of what is hashed.
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
    op.create_index("ix_events_request_number", "events", ["request_number"])
    op.create_index("events_never_fork", "events", ["previous_hash"], unique=True)
    op.create_table("exclusions", _request_key(), sa.Column("at", TIME, nullable=False))


def _request_key() -> sa.Column[int]:
    """Return the key of a table that has at most one row per request."""
    request = sa.ForeignKey("requests.number")
    return sa.Column("request_number", sa.Integer, request, primary_key=True, autoincrement=False)


def _create_what_belongs_to_the_federation() -> None:
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


# SQLite: a trigger per rule


def _sqlite_rules() -> None:
    for table, same in APPEND_ONLY.items():
        message = f"{table} is append-only"
        _refuse(f"{table}_no_update", f"UPDATE ON {table}", "", message)
        _refuse(f"{table}_no_delete", f"DELETE ON {table}", "", message)
        # INSERT OR REPLACE would delete the old row without asking the triggers above.
        _refuse(f"{table}_no_replace", f"INSERT ON {table}", _is_there(table, same), message)
    _refuse("legal_moves_no_insert", "INSERT ON legal_moves", "", "legal_moves changes by migration only")
    _sqlite_rules_of_requests()
    given_back = f"NEW.sample_ids IS NULL AND NEW.sha256 IS OLD.sha256 AND {IS_OVER}"
    erased = f"{_is_same(('number', 'kind', 'sha256'), 'IS')} AND NEW.salt IS NULL AND NEW.text IS NULL"
    for table, key, allowed, message in (
        ("request_samples", "request_number", given_back, SAMPLES_STAY),
        ("request_texts", "number", erased, TEXTS_STAY),
    ):
        whose = "NEW.request_number = OLD.request_number"
        _refuse(f"{table}_no_update", f"UPDATE ON {table}", f"NOT ({whose} AND {allowed})", message)
        _refuse(f"{table}_no_delete", f"DELETE ON {table}", "", message)
        _refuse(f"{table}_no_replace", f"INSERT ON {table}", _is_there(table, f"{key} = NEW.{key}"), message)


def _sqlite_rules_of_requests() -> None:
    _refuse(
        "requests_no_replace",
        "INSERT ON requests",
        _is_there(
            "requests",
            "number = NEW.number OR (idempotency_key = NEW.idempotency_key AND submitted_by = NEW.submitted_by "
            "AND submitted_role IS NEW.submitted_role) "
            f"OR (target_key = NEW.target_key AND status IN {OPEN})",
        ),
        "this request exists, or one for the same target is open",
    )
    another = f"target_key = NEW.target_key AND number <> NEW.number AND status IN {OPEN}"
    _refuse(
        "requests_no_update_or_replace",
        "UPDATE ON requests",
        f"NEW.status IN {OPEN} AND {_is_there('requests', another)}",
        "a request for the same target is open",
    )
    _refuse("requests_no_delete", "DELETE ON requests", "", "requests are never deleted")
    _refuse(
        "requests_start_received",
        "INSERT ON requests",
        "NEW.status <> 'received'",
        "a request starts as received",
    )
    _refuse("requests_legal_moves", "UPDATE ON requests", NO_SUCH_MOVE, "illegal move of a request")
    changed = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in (*IMMUTABLE, *IMMUTABLE_JSON))
    _refuse("requests_immutable", "UPDATE ON requests", changed, ASKED_FOR_STAYS)
    due_on = "date(OLD.due_on, (NEW.extended_days - OLD.extended_days) || ' days')"
    for name, (condition, message) in DEADLINE_RULES.items():
        _refuse(name, "UPDATE ON requests", condition.format(due_on=due_on), message)


def _refuse(name: str, when: str, condition: str, message: str) -> None:
    """Add a trigger that refuses a change, only where the condition holds if there is one."""
    op.execute(
        f"CREATE TRIGGER {name} BEFORE {when} "
        f"{f'WHEN {condition} ' if condition else ''}"
        f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )


def _is_there(table: str, condition: str) -> str:
    return f"EXISTS (SELECT 1 FROM {table} WHERE {condition})"


def _is_same(columns: Iterable[str], equals: str) -> str:
    return " AND ".join(f"NEW.{name} {equals} OLD.{name}" for name in columns)


# PostgreSQL: a function per table


def _postgresql_rules() -> None:
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
        _refuse_statement(f"{table}_append_only", f"UPDATE OR DELETE OR TRUNCATE ON {table}")
    _refuse_statement("legal_moves_no_insert", "INSERT ON legal_moves")
    for table in ("requests", "request_samples", "request_texts"):
        _refuse_statement(f"{table}_no_delete", f"DELETE OR TRUNCATE ON {table}")

    changed = [f"OLD.{column} IS DISTINCT FROM NEW.{column}" for column in IMMUTABLE]
    changed += [f"OLD.{column}::text IS DISTINCT FROM NEW.{column}::text" for column in IMMUTABLE_JSON]
    due_on = "OLD.due_on + (NEW.extended_days - OLD.extended_days)"
    _check_each_row("requests", "INSERT", {"NEW.status <> 'received'": "a request starts as received"})
    _check_each_row(
        "requests",
        "UPDATE",
        {
            NO_SUCH_MOVE: "illegal move of a request",
            " OR ".join(changed): ASKED_FOR_STAYS,
            **{rule.format(due_on=due_on): message for rule, message in DEADLINE_RULES.values()},
        },
    )
    given_back = f"{_is_same(('request_number', 'sha256'), '=')} AND NEW.sample_ids IS NULL AND {IS_OVER}"
    _check_each_row("request_samples", "UPDATE", {f"NOT ({given_back})": SAMPLES_STAY})
    same = _is_same(("number", "request_number", "kind", "sha256"), "=")
    erased = f"{same} AND NEW.salt IS NULL AND NEW.text IS NULL"
    _check_each_row("request_texts", "UPDATE", {f"NOT ({erased})": TEXTS_STAY})
    # PostgreSQL's statistics copy values of a column; those of what can be erased are off.
    for table, column in (
        ("request_texts", "text"),
        ("request_texts", "salt"),
        ("request_samples", "sample_ids"),
    ):
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")


def _refuse_statement(name: str, when: str) -> None:
    """Add a trigger that refuses a change always."""
    op.execute(f"CREATE TRIGGER {name} BEFORE {when} FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()")


def _check_each_row(table: str, when: str, rules: dict[str, str]) -> None:
    """Add a trigger that refuses a change of a row where one of these conditions holds, each with its sentence."""
    name = f"check_{table}_{when.lower()}"
    checks = " ".join(
        f"IF {condition} THEN RAISE EXCEPTION '{message}' USING ERRCODE = 'check_violation'; END IF;"
        for condition, message in rules.items()
    )
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {checks} RETURN NEW; END $$"
    )
    op.execute(f"CREATE TRIGGER {name} BEFORE {when} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")
