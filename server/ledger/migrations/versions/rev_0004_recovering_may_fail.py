"""The fourth schema: a recovering request may fail, because what it leaves is judged before it is committed.

A request that an earlier version has left in `recovering` is excluded already; it goes on and is not judged.
"""

from alembic import op

revision = "0004"
down_revision = "0003"

_SQLITE = "BEGIN SELECT RAISE(ABORT, 'legal_moves changes by migration only'); END"
_TRIGGER = "CREATE TRIGGER legal_moves_no_insert BEFORE INSERT ON legal_moves"


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    op.execute("DROP TRIGGER legal_moves_no_insert" + ("" if is_sqlite else " ON legal_moves"))
    op.execute("INSERT INTO legal_moves (from_status, to_status) VALUES ('recovering', 'failed')")
    op.execute(
        f"{_TRIGGER} {_SQLITE}"
        if is_sqlite
        else f"{_TRIGGER} FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )


def downgrade() -> None:
    raise NotImplementedError(
        "Requests may have failed after recovery; restore a backup of the third schema."
    )
