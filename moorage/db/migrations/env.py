"""Run the migrations of the schema that :class:`moorage.db.schemas.Schema` hands over, on its connection."""

from alembic import context

connection = context.config.attributes["connection"]
schema = context.config.attributes["schema"]

context.configure(
    connection=connection,
    target_metadata=schema.metadata,
    version_table=schema.version_table,
    # The same database may hold the tables of other schemas: those are left out.
    include_name=lambda name, kind, _parents: kind != "table" or name in schema.metadata.tables,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
