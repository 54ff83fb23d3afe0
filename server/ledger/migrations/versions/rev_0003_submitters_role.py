"""The third schema: a request says in which role its submitter filed it; older requests say nothing (null).

The role never changes, like everything else that a request asks for, so the rule is made anew with it.
"""

import sqlalchemy as sa
from alembic import op

from server.ledger.migrations.shared import (
    ASKED_FOR,
    ASKED_FOR_STAYS,
    check_each_row,
    is_sqlite,
    refuse_other_request,
)

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("requests", sa.Column("submitted_role", sa.String(20), nullable=True))
    if is_sqlite():
        op.execute("DROP TRIGGER requests_immutable")
        refuse_other_request((*ASKED_FOR, "target", "parameters"))
        return
    # The function of the first schema goes on as it is; one more trigger guards the new column.
    op.execute(
        f"""
        CREATE FUNCTION check_submitted_role() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF OLD.submitted_role IS DISTINCT FROM NEW.submitted_role THEN
                RAISE EXCEPTION '{ASKED_FOR_STAYS}' USING ERRCODE = 'check_violation';
            END IF;
            RETURN NEW;
        END $$
        """
    )
    check_each_row("requests_check_role", "UPDATE ON requests", "check_submitted_role")


def downgrade() -> None:
    raise NotImplementedError("Who filed in which role is evidence; restore a backup of the second schema.")
