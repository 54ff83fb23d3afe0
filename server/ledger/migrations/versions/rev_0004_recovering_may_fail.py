"""The fourth schema: a recovering request may fail, because what it leaves is judged before it is committed.

A request that an earlier version has left in `recovering` is excluded already; it goes on and is not judged.
"""

from server.ledger.migrations.shared import add_moves

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    add_moves([("recovering", "failed")])


def downgrade() -> None:
    raise NotImplementedError(
        "Requests may have failed after recovery; restore a backup of the third schema."
    )
