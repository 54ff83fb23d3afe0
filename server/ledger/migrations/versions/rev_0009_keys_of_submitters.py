"""The ninth schema: an idempotency key belongs to its submitter, who is a role and a name.

No row changes, so none is sealed again. NULL never equals NULL in a unique index, so requests without a role have one
of their own.
"""

import re

import sqlalchemy as sa
from alembic import op

from server.ledger.migrations.shared import is_sqlite

revision = "0009"
down_revision = "0008"

_UNIQUE_KEY = re.compile(r",\s*UNIQUE \(idempotency_key\)")
_OF_ONE_KEY = "OR idempotency_key = NEW.idempotency_key"
_OF_ONE_SUBMITTERS_KEY = (
    "OR (idempotency_key = NEW.idempotency_key AND submitted_by = NEW.submitted_by "
    "AND submitted_role IS NEW.submitted_role)"
)


def upgrade() -> None:
    if is_sqlite():
        _write_requests_again()
    else:
        op.drop_constraint("requests_idempotency_key_key", "requests", type_="unique")
    columns = ["submitted_by", "idempotency_key"]
    op.create_index("one_request_per_key", "requests", [*columns, "submitted_role"], unique=True)
    without_role = sa.text("submitted_role IS NULL")
    op.create_index(
        "one_request_per_key_without_role",
        "requests",
        columns,
        unique=True,
        sqlite_where=without_role,
        postgresql_where=without_role,
    )


def downgrade() -> None:
    raise NotImplementedError("Two submitters may have one key now; restore a backup of the eighth schema.")


def _write_requests_again() -> None:
    """Make SQLite's table again without the old constraint: SQLite cannot drop one.

    A new table under the old name, not one that is renamed: SQLite checks the triggers of other tables at a renaming.
    """
    connection = op.get_bind()
    query = sa.text(
        "SELECT sql FROM sqlite_master WHERE tbl_name = 'requests' AND sql IS NOT NULL ORDER BY rowid"
    )
    table, *others = connection.scalars(query).all()
    without, found = _UNIQUE_KEY.subn("", table)
    assert found == 1, "the first schema wrote this constraint"
    # Events and others refer to requests; they are checked at the end, when the rows are there again.
    connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
    connection.exec_driver_sql("CREATE TABLE kept_requests AS SELECT * FROM requests")
    connection.exec_driver_sql("DROP TABLE requests")  # its indexes and triggers go with it
    connection.exec_driver_sql(without)
    connection.exec_driver_sql("INSERT INTO requests SELECT * FROM kept_requests")
    connection.exec_driver_sql("DROP TABLE kept_requests")
    for statement in others:
        connection.exec_driver_sql(statement.replace(_OF_ONE_KEY, _OF_ONE_SUBMITTERS_KEY))
