"""The eighth schema: the ground of a request may be amended; each change is an event that commits to the row.

No row changes, so none is sealed anew. What else stands in the two rules is that of the sixth schema.
"""

from alembic import op

revision = "0008"
down_revision = "0007"

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
    "target",
    "parameters",
)
MESSAGE = "what a request asks for never changes"
# On PostgreSQL one function has these rules of earlier schemas as well.
RULES = {
    "OLD.submitted_role IS DISTINCT FROM NEW.submitted_role OR OLD.num_samples IS DISTINCT FROM NEW.num_samples "
    "OR OLD.received_on IS DISTINCT FROM NEW.received_on": MESSAGE,
    "NEW.extended_days <> OLD.extended_days AND (OLD.extended_days <> 0 OR NEW.extended_days NOT BETWEEN 1 AND 60)": (
        "a deadline is extended once, by 1 to 60 days"
    ),
    "OLD.due_on + (NEW.extended_days - OLD.extended_days) <> NEW.due_on": (
        "a deadline moves by its extension only"
    ),
    "NEW.is_held AND NEW.status <> OLD.status AND NEW.status IN ('scheduled', 'unlearning')": (
        "a request that is held does not begin"
    ),
}


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        changed = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in IMMUTABLE)
        op.execute("DROP TRIGGER requests_immutable")
        op.execute(
            f"CREATE TRIGGER requests_immutable BEFORE UPDATE ON requests WHEN {changed} "
            f"BEGIN SELECT RAISE(ABORT, '{MESSAGE}'); END"
        )
        return
    checks = "".join(
        f"IF {condition} THEN RAISE EXCEPTION '{message}' USING ERRCODE = 'check_violation'; END IF; "
        for condition, message in RULES.items()
    )
    op.execute(
        "CREATE OR REPLACE FUNCTION check_submitted_role() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {checks} RETURN NEW; END $$"
    )


def downgrade() -> None:
    raise NotImplementedError("Amendments are evidence; restore a backup of the seventh schema.")
