"""The fifth schema: sample ids in a table of their own, and all rows bound to the events' chain.

Ids of requests that were cancelled or have failed for good are erased on their way. The others keep the form in which
they stand here: `Ledger.open` hashes them, because a migration has no key. Until then no hash of them is kept either,
which would tell who guesses that he is right.

What stands in requests, rounds, refusals, fence and facts is taken over as it is: events `sealed`, and one event
`taken-over` for each request, commit to it. What was changed before cannot be found.
"""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from server.ledger.migrations.shared import (
    ASKED_FOR,
    ASKED_FOR_STAYS,
    SAME_EVENT,
    SAMPLES_STAY,
    Chain,
    check_each_row,
    create_events,
    has_rows,
    hash_of_rows,
    is_sqlite,
    make_append_only,
    pages,
    put_in_place_of_events,
    reflect,
    refuse,
    refuse_other_request,
    refuse_other_samples,
    refuse_statement,
    request_key,
)

revision = "0005"
down_revision = "0004"

OVER = "status IN ('cancelled', 'failed')"


def upgrade() -> None:
    op.execute(
        "DROP TRIGGER requests_immutable" if is_sqlite() else "DROP TRIGGER requests_check ON requests"
    )
    op.add_column("requests", sa.Column("num_samples", sa.Integer, nullable=False, server_default="0"))
    op.create_index("ix_requests_submitted_by_created_at", "requests", ["submitted_by", "created_at"])
    op.create_table(
        "request_samples",
        request_key(),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("is_keyed", sa.Boolean, nullable=False),
        sa.Column("sample_ids", sa.Text, nullable=True),
    )
    _move_ids()
    if is_sqlite():
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
    if not has_rows("requests"):
        return
    connection = op.get_bind()
    requests, samples = reflect("requests"), reflect("request_samples")
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
    create_events("events_of_all", need_request=False)
    columns = "sequence, request_number, kind, from_status, to_status, actor, detail, at, previous_hash, hash"
    op.execute(f"INSERT INTO events_of_all ({columns}) SELECT {columns} FROM events ORDER BY sequence")
    put_in_place_of_events("events_of_all")


def _sqlite_triggers() -> None:
    refuse_other_request((*ASKED_FOR, "num_samples", "target", "parameters"))
    make_append_only("events", SAME_EVENT)
    known = "EXISTS (SELECT 1 FROM request_samples WHERE request_number = NEW.request_number)"
    refuse("request_samples_no_delete", "DELETE ON request_samples", "", SAMPLES_STAY)
    refuse("request_samples_no_replace", "INSERT ON request_samples", known, SAMPLES_STAY)
    refuse_other_samples(OVER)


def _postgresql_triggers() -> None:
    check_each_row("requests_check", "INSERT OR UPDATE ON requests", "check_request")
    op.execute(
        f"""
        CREATE OR REPLACE FUNCTION check_submitted_role() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF OLD.submitted_role IS DISTINCT FROM NEW.submitted_role
               OR OLD.num_samples IS DISTINCT FROM NEW.num_samples THEN
                RAISE EXCEPTION '{ASKED_FOR_STAYS}' USING ERRCODE = 'check_violation';
            END IF;
            RETURN NEW;
        END $$
        """
    )
    refuse_other_samples(OVER)
    check_each_row("request_samples_check", "UPDATE ON request_samples", "check_request_samples")
    refuse_statement("request_samples_no_delete", "DELETE OR TRUNCATE ON request_samples")


def _take_over() -> None:
    """Commit to what stands in the ledger; to nothing where it is new."""
    connection, chain = op.get_bind(), Chain()
    for row in pages("requests", "number"):
        form = "keyed:" if _is_over(row) else "plain:"
        chain.append_request(row, "taken-over", form if row.num_samples else None)
    for name in ("rounds", "refusals"):
        ends = sa.text(f"SELECT min(sequence), max(sequence) FROM {name}")
        first, last = connection.execute(ends).one()
        if first is not None:
            digest = hash_of_rows(pages(name, "sequence"))
            chain.append(None, "sealed", {"table": name, "first": first, "last": last, "sha256": digest})
    if has_rows("fence WHERE token <> 0"):
        fence = connection.execute(sa.select(reflect("fence"))).all()
        chain.append(None, "sealed", {"table": "fence", "sha256": hash_of_rows(fence)})
    if has_rows("federation_facts"):
        found = connection.execute(sa.select(reflect("federation_facts"))).all()
        facts = sorted(found, key=lambda row: row.key)
        chain.append(None, "sealed", {"table": "federation_facts", "sha256": hash_of_rows(facts)})
