"""The seventh schema: PostgreSQL's statistics, which copy values of a column, leave alone what can be erased."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":  # it has none
        return
    for table, column, kind in (
        ("request_texts", "text", "TEXT"),
        ("request_texts", "salt", "VARCHAR(64)"),
        ("request_samples", "sample_ids", "TEXT"),
    ):
        # To give a column its own type again drops the statistics that there are.
        op.execute(
            f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0, ALTER COLUMN {column} TYPE {kind}"
        )


def downgrade() -> None:
    raise NotImplementedError("Nothing else changed; restore a backup of the sixth schema.")
