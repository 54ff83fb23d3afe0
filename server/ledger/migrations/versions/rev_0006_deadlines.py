"""The sixth schema: deadlines, grounds, holds, refusals, and people's texts in a table where they can be erased.

A request of before counts as received on the day it was filed, UTC, and is due one month later; an event `dated` of
each says so and commits to its row anew, as the fifth schema's check demands.

`_row_hash` and the others repeat `server.ledger.seals` and `server.ledger.chain`, and `_one_month_after` what is in
`unlearning.deadlines`, because a migration imports nothing that may change; a test checks a migrated ledger with
today's functions.
"""

import hashlib
import json
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

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
    "received_on",
    "ground",
)
IMMUTABLE_JSON = ("target", "parameters")
MOVES = (("received", "refused"), ("scheduled", "refused"), ("failed", "refused"))
OVER = "status IN ('cancelled', 'failed', 'refused')"
# Each of these is an error; the last part of each is the sentence.
RULES = {
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
DUE_ON = {
    "sqlite": "date(OLD.due_on, (NEW.extended_days - OLD.extended_days) || ' days')",
    "postgresql": "OLD.due_on + (NEW.extended_days - OLD.extended_days)",
}
TEXTS_STAY = "what was written is erased, not changed"


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    _drop_rules(is_sqlite)
    _add_columns(is_sqlite)
    moves = sa.table("legal_moves", sa.column("from_status"), sa.column("to_status"))
    op.bulk_insert(moves, [{"from_status": source, "to_status": to} for source, to in MOVES])
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
    if is_sqlite:
        _sqlite_rules()
    else:
        _postgresql_rules()
    _seal_anew()


def downgrade() -> None:
    raise NotImplementedError("Deadlines and refusals are evidence; restore a backup of the fifth schema.")


def _drop_rules(is_sqlite: bool) -> None:
    if is_sqlite:
        for name in ("requests_immutable", "legal_moves_no_insert", "request_samples_no_update"):
            op.execute(f"DROP TRIGGER {name}")
        return
    op.execute("DROP TRIGGER requests_check_role ON requests")
    op.execute("DROP TRIGGER legal_moves_no_insert ON legal_moves")


def _add_columns(is_sqlite: bool) -> None:
    some_day = "1970-01-01"
    for column in (
        sa.Column("received_on", sa.Date, nullable=False, server_default=some_day),
        sa.Column("due_on", sa.Date, nullable=False, server_default=some_day),
        sa.Column("extended_days", sa.Integer, nullable=False, server_default="0"),
        sa.Column("ground", sa.String(1), nullable=True),
        sa.Column("is_held", sa.Boolean, nullable=False, server_default=sa.false()),
    ):
        op.add_column("requests", column)
    op.create_index("ix_requests_due_on", "requests", ["due_on"])
    connection = op.get_bind()
    rows = connection.execute(sa.select(_requests.c.number, _requests.c.created_at)).all()
    for row in rows:
        day = _utc(row.created_at).date()
        values = {"received_on": day, "due_on": _one_month_after(day)}
        connection.execute(sa.update(_requests).where(_requests.c.number == row.number).values(values))
    if not is_sqlite:
        for name in ("received_on", "due_on", "extended_days", "is_held"):
            op.alter_column("requests", name, server_default=None)


def _sqlite_rules() -> None:
    def refuse(name: str, when: str, condition: str, message: str) -> None:
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} {f'WHEN {condition} ' if condition else ''}"
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )

    refuse("legal_moves_no_insert", "INSERT ON legal_moves", "", "legal_moves changes by migration only")
    changed = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in IMMUTABLE + IMMUTABLE_JSON)
    refuse("requests_immutable", "UPDATE ON requests", changed, "what a request asks for never changes")
    for name, (condition, message) in RULES.items():
        refuse(name, "UPDATE ON requests", condition.format(due_on=DUE_ON["sqlite"]), message)
    given_back = (
        "NEW.sample_ids IS NULL AND NEW.sha256 IS OLD.sha256 AND NEW.is_keyed IS OLD.is_keyed AND EXISTS "
        f"(SELECT 1 FROM requests WHERE number = OLD.request_number AND {OVER})"
    )
    keyed = "OLD.is_keyed = 0 AND NEW.is_keyed = 1"
    allowed = f"NEW.request_number = OLD.request_number AND (({given_back}) OR ({keyed}))"
    message = "the ids of samples never change"
    refuse("request_samples_no_update", "UPDATE ON request_samples", f"NOT ({allowed})", message)
    same = " AND ".join(
        f"NEW.{name} IS OLD.{name}" for name in ("number", "request_number", "kind", "sha256")
    )
    erased = f"{same} AND NEW.salt IS NULL AND NEW.text IS NULL"
    known = "EXISTS (SELECT 1 FROM request_texts WHERE number = NEW.number)"
    refuse("request_texts_no_update", "UPDATE ON request_texts", f"NOT ({erased})", TEXTS_STAY)
    refuse("request_texts_no_delete", "DELETE ON request_texts", "", TEXTS_STAY)
    refuse("request_texts_no_replace", "INSERT ON request_texts", known, TEXTS_STAY)


def _postgresql_rules() -> None:
    op.execute(
        "CREATE TRIGGER legal_moves_no_insert BEFORE INSERT ON legal_moves "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    # The functions of earlier schemas go on under their names.
    changed = " OR ".join(
        f"OLD.{column} IS DISTINCT FROM NEW.{column}"
        for column in ("submitted_role", "num_samples", "received_on", "ground")
    )
    rules = {changed: "what a request asks for never changes"} | {
        condition.format(due_on=DUE_ON["postgresql"]): message for condition, message in RULES.values()
    }
    checks = "".join(
        f"IF {condition} THEN RAISE EXCEPTION '{message}' USING ERRCODE = 'check_violation'; END IF; "
        for condition, message in rules.items()
    )
    op.execute(
        "CREATE OR REPLACE FUNCTION check_submitted_role() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {checks} RETURN NEW; END $$"
    )
    op.execute(
        "CREATE TRIGGER requests_check_role BEFORE UPDATE ON requests "
        "FOR EACH ROW EXECUTE FUNCTION check_submitted_role()"
    )
    op.execute(
        f"""
        CREATE OR REPLACE FUNCTION check_request_samples() RETURNS trigger LANGUAGE plpgsql AS $$
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
    same = " AND ".join(f"NEW.{name} = OLD.{name}" for name in ("number", "request_number", "kind", "sha256"))
    op.execute(
        f"""
        CREATE FUNCTION check_request_texts() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF {same} AND NEW.salt IS NULL AND NEW.text IS NULL THEN
                RETURN NEW;
            END IF;
            RAISE EXCEPTION '{TEXTS_STAY}' USING ERRCODE = 'check_violation';
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER request_texts_check BEFORE UPDATE ON request_texts "
        "FOR EACH ROW EXECUTE FUNCTION check_request_texts()"
    )
    op.execute(
        "CREATE TRIGGER request_texts_no_delete BEFORE DELETE OR TRUNCATE ON request_texts "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )


def _one_month_after(day: date) -> date:
    year, month = (day.year + 1, 1) if day.month == 12 else (day.year, day.month + 1)
    return date(year, month, min(day.day, monthrange(year, month)[1]))


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
    sa.column("received_on", sa.Date),
    sa.column("due_on", sa.Date),
    sa.column("extended_days", sa.Integer),
    sa.column("ground", sa.String),
    sa.column("is_held", sa.Boolean),
)
_samples = sa.table(
    "request_samples",
    sa.column("request_number", sa.Integer),
    sa.column("sha256", sa.String),
    sa.column("is_keyed", sa.Boolean),
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


def _seal_anew() -> None:
    """Commit to every request as it stands now; to nothing where the ledger is new."""
    connection = op.get_bind()
    newest = sa.select(_events.c.sequence, _events.c.hash).order_by(_events.c.sequence.desc()).limit(1)
    last = connection.execute(newest).one_or_none()
    if last is None:
        return
    sequence, previous_hash, now = last.sequence, last.hash, datetime.now(UTC)
    for row in _pages(connection):
        sequence += 1
        values = {
            "sequence": sequence,
            "request_number": row.number,
            "kind": "dated",
            "from_status": None,
            "to_status": None,
            "actor": "migration",
            "detail": {"request_sha256": _request_hash(connection, row)},
            "previous_hash": previous_hash,
        }
        previous_hash = _row_hash({**values, "at": now})
        at = now.replace(tzinfo=None) if connection.dialect.name == "sqlite" else now
        connection.execute(sa.insert(_events).values(**values, at=at, hash=previous_hash))


def _pages(connection: sa.Connection) -> Iterator[sa.Row[Any]]:
    last = 0
    while True:
        after = sa.select(_requests).where(_requests.c.number > last).order_by(_requests.c.number).limit(1000)
        rows = connection.execute(after).all()
        yield from rows
        if len(rows) < 1000:
            return
        last = rows[-1].number


def _request_hash(connection: sa.Connection, row: sa.Row[Any]) -> str:
    listed = sa.select(_samples.c.sha256, _samples.c.is_keyed).where(_samples.c.request_number == row.number)
    samples = connection.execute(listed).one_or_none()
    excluded = sa.select(_exclusions.c.at).where(_exclusions.c.request_number == row.number)
    more = {
        "samples_sha256": samples and f"{'keyed' if samples.is_keyed else 'plain'}:{samples.sha256}",
        "excluded_at": connection.scalar(excluded),
    }
    return _row_hash({**row._mapping, **more})


def _row_hash(values: Any) -> str:
    plain = {name: _plain(value) for name, value in values.items()}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return _utc(value).isoformat(timespec="microseconds")
    return value.isoformat() if isinstance(value, date) else value


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
