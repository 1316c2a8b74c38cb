"""Runs the revisions on the connection that `opening.py` hands over, inside its transaction."""

from alembic import context

from crosszone.store.tables import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # of SQLite too, where we begin transactions ourselves
)
with context.begin_transaction():
    context.run_migrations()
