"""Alembic's entry point: runs the migrations on the connection that `server.ledger.database` passes.

The caller holds the write lock and commits; nothing here opens a connection of its own.
"""

from alembic import context

from server.ledger.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
