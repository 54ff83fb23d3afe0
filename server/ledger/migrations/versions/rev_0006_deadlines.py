"""The sixth schema: deadlines, grounds, holds, refusals, and people's texts in a table where they can be erased.

A request of before counts as received on the day it was filed, UTC, and is due one month later; an event `dated` of
each says so and commits to its row anew, as the fifth schema's check demands.

`_one_month_after` repeats what is in `unlearning.deadlines`, because a migration imports nothing that may change; a
test checks a migrated ledger with today's functions.
"""

from calendar import monthrange
from datetime import date

import sqlalchemy as sa
from alembic import op

from server.ledger.migrations.shared import (
    ASKED_FOR,
    DEADLINE_RULES,
    Chain,
    add_moves,
    check_each_row,
    is_sqlite,
    pages,
    reflect,
    refuse,
    refuse_other_deadline,
    refuse_other_request,
    refuse_other_samples,
    refuse_statement,
    utc,
)

revision = "0006"
down_revision = "0005"

MOVES = (("received", "refused"), ("scheduled", "refused"), ("failed", "refused"))
OVER = "status IN ('cancelled', 'failed', 'refused')"
TEXTS_STAY = "what was written is erased, not changed"


def upgrade() -> None:
    op.execute(
        "DROP TRIGGER requests_immutable" if is_sqlite() else "DROP TRIGGER requests_check_role ON requests"
    )
    if is_sqlite():
        op.execute("DROP TRIGGER request_samples_no_update")
    _add_columns()
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
    add_moves(MOVES)
    if is_sqlite():
        _sqlite_rules()
    else:
        _postgresql_rules()
    _seal_anew()


def downgrade() -> None:
    raise NotImplementedError("Deadlines and refusals are evidence; restore a backup of the fifth schema.")


def _add_columns() -> None:
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
    days = (sa.column(name, sa.Date) for name in ("received_on", "due_on"))
    requests = sa.table("requests", sa.column("number"), *days)
    for row in pages("requests", "number"):
        day = utc(row.created_at).date()
        values = {"received_on": day, "due_on": _one_month_after(day)}
        op.execute(sa.update(requests).where(requests.c.number == row.number).values(values))
    if not is_sqlite():
        for name in ("received_on", "due_on", "extended_days", "is_held"):
            op.alter_column("requests", name, server_default=None)


def _sqlite_rules() -> None:
    refuse_other_request((*ASKED_FOR, "num_samples", "received_on", "ground", "target", "parameters"))
    due_on = "date(OLD.due_on, (NEW.extended_days - OLD.extended_days) || ' days')"
    for name, (condition, message) in DEADLINE_RULES.items():
        refuse(name, "UPDATE ON requests", condition.format(due_on=due_on), message)
    refuse_other_samples(OVER)
    same = " AND ".join(
        f"NEW.{name} IS OLD.{name}" for name in ("number", "request_number", "kind", "sha256")
    )
    erased = f"{same} AND NEW.salt IS NULL AND NEW.text IS NULL"
    known = "EXISTS (SELECT 1 FROM request_texts WHERE number = NEW.number)"
    refuse("request_texts_no_update", "UPDATE ON request_texts", f"NOT ({erased})", TEXTS_STAY)
    refuse("request_texts_no_delete", "DELETE ON request_texts", "", TEXTS_STAY)
    refuse("request_texts_no_replace", "INSERT ON request_texts", known, TEXTS_STAY)


def _postgresql_rules() -> None:
    refuse_other_deadline(("submitted_role", "num_samples", "received_on", "ground"))
    check_each_row("requests_check_role", "UPDATE ON requests", "check_submitted_role")
    refuse_other_samples(OVER)
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
    check_each_row("request_texts_check", "UPDATE ON request_texts", "check_request_texts")
    refuse_statement("request_texts_no_delete", "DELETE OR TRUNCATE ON request_texts")


def _one_month_after(day: date) -> date:
    year, month = (day.year + 1, 1) if day.month == 12 else (day.year, day.month + 1)
    return date(year, month, min(day.day, monthrange(year, month)[1]))


def _seal_anew() -> None:
    """Commit to every request as it stands now; to nothing where the ledger is new."""
    chain = Chain()
    if chain.is_empty:
        return
    samples = reflect("request_samples")
    for row in pages("requests", "number"):
        listed = sa.select(samples.c.sha256, samples.c.is_keyed).where(samples.c.request_number == row.number)
        found = op.get_bind().execute(listed).one_or_none()
        digest = found and f"{'keyed' if found.is_keyed else 'plain'}:{found.sha256}"
        chain.append_request(row, "dated", digest)
