"""The eighth schema: the ground of a request may be amended; each change is an event that commits to the row.

No row changes, so none is sealed anew. What else stands in the two rules is that of the sixth schema.
"""

from alembic import op

from server.ledger.migrations.shared import (
    ASKED_FOR,
    is_sqlite,
    refuse_other_deadline,
    refuse_other_request,
)

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    if is_sqlite():
        op.execute("DROP TRIGGER requests_immutable")
        refuse_other_request((*ASKED_FOR, "num_samples", "received_on", "target", "parameters"))
    else:
        refuse_other_deadline(("submitted_role", "num_samples", "received_on"))


def downgrade() -> None:
    raise NotImplementedError("Amendments are evidence; restore a backup of the seventh schema.")
