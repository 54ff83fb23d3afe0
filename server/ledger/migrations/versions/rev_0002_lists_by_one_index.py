"""The index of a request's state has all that lists are filtered and sorted by."""

from alembic import op

revision = "0002"
down_revision = "0001"
_COLUMNS = (
    "status",
    "due_on",
    "number",
    "outcome",
    "is_held",
    "received_on",
    "updated_at",
    "client_id",
    "method",
)


def upgrade() -> None:
    """Make the index again, with more columns."""
    op.drop_index("ix_requests_status", "requests")
    op.create_index("ix_requests_status", "requests", _COLUMNS)
