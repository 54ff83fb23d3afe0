"""The third schema: a request says in which role its submitter filed it; older requests say nothing (null).

The role never changes, like everything else that a request asks for, so the rule is made anew with it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

IMMUTABLE = (
    "number",
    "idempotency_key",
    "target_key",
    "client_id",
    "method",
    "submitted_by",
    "submitted_role",
    "created_at",
)
IMMUTABLE_JSON = ("target", "parameters")


def upgrade() -> None:
    op.add_column("requests", sa.Column("submitted_role", sa.String(20), nullable=True))
    if op.get_bind().dialect.name == "sqlite":
        changed = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in IMMUTABLE + IMMUTABLE_JSON)
        op.execute("DROP TRIGGER requests_immutable")
        op.execute(
            f"CREATE TRIGGER requests_immutable BEFORE UPDATE ON requests WHEN {changed} "
            "BEGIN SELECT RAISE(ABORT, 'what a request asks for never changes'); END"
        )
        return
    # The function of the first schema goes on as it is; one more trigger guards the new column.
    op.execute(
        """
        CREATE FUNCTION check_submitted_role() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF OLD.submitted_role IS DISTINCT FROM NEW.submitted_role THEN
                RAISE EXCEPTION 'what a request asks for never changes' USING ERRCODE = 'check_violation';
            END IF;
            RETURN NEW;
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER requests_check_role BEFORE UPDATE ON requests "
        "FOR EACH ROW EXECUTE FUNCTION check_submitted_role()"
    )


def downgrade() -> None:
    raise NotImplementedError("Who filed in which role is evidence; restore a backup of the second schema.")
