"""The first schema, which `server.ledger.schema_rules` creates whole; revisions change ledgers that exist."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Leave a ledger of this schema as it is."""
