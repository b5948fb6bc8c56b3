"""Record moves, and with each attempt what it was claimed with."""

import json

import sqlalchemy as sa
from alembic import op

from moorage.db import schema_changes
from moorage.db.columns import document_type, name_type, request_id_type, uuid_type

revision = "cell_0003"
down_revision = "cell_0002"

#: Instances of one round, so that none of them holds more than a moment's worth in memory.
_AT_ONCE = 500


def upgrade() -> None:
    """Record moves, and with each attempt what it was claimed with."""
    schema_changes.create_table(
        "cell_migrations",
        sa.Column("cell_uuid", uuid_type(), nullable=False),
        sa.Column("uuid", uuid_type(), nullable=False),
        sa.Column("instance_uuid", uuid_type(), nullable=False),
        sa.Column("request_id", request_id_type(), nullable=False),
        sa.Column("kind", name_type(), nullable=False),
        sa.Column("state", name_type(), nullable=False),
        sa.Column("reason", document_type(), nullable=True),
        sa.Column("instance_state", name_type(), nullable=False),
        sa.Column("source_number", sa.Integer(), nullable=False),
        sa.Column("source_host", name_type(), nullable=False),
        sa.Column("destination_host", name_type(), nullable=True),
        sa.Column("request_spec", document_type(), nullable=True),
        sa.Column("held", document_type(), nullable=True),
        sa.Column("selections", document_type(), nullable=True),
        sa.Column("first_number", sa.Integer(), nullable=True),
        sa.Column("is_aborted", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("cell_uuid", "uuid"),
    )
    schema_changes.create_index("ix_cell_migrations_instance", "cell_migrations", ["cell_uuid", "instance_uuid"])
    schema_changes.add_column(
        "cell_instances", sa.Column("first_number", sa.Integer(), server_default="1", nullable=False)
    )
    schema_changes.add_column("cell_instances", sa.Column("migration_uuid", uuid_type(), nullable=True))
    schema_changes.add_column("cell_attempts", sa.Column("migration_uuid", uuid_type(), nullable=True))
    schema_changes.add_column("cell_attempts", sa.Column("selection", document_type(), nullable=True))
    _keep_selections(op.get_bind())


def _keep_selections(connection: sa.Connection) -> None:
    """Write to each attempt the selection that had its number until now."""
    key = (sa.column("cell_uuid", uuid_type()), sa.column("uuid", uuid_type()))
    instances = sa.table("cell_instances", *key, sa.column("selections", document_type()))
    attempts = sa.table(
        "cell_attempts",
        sa.column("cell_uuid", uuid_type()),
        sa.column("instance_uuid", uuid_type()),
        sa.column("number", sa.Integer()),
        sa.column("selection", document_type()),
    )
    after: sa.ColumnElement[bool] = sa.true()
    while True:
        rows = connection.execute(
            sa.select(instances)
            .where(after, instances.c.selections.is_not(None))
            .order_by(instances.c.cell_uuid, instances.c.uuid)
            .limit(_AT_ONCE)
        ).all()
        if not rows:
            return
        for row in rows:
            for number, selection in enumerate(json.loads(row.selections), start=1):
                connection.execute(
                    attempts.update()
                    .where(
                        attempts.c.cell_uuid == row.cell_uuid,
                        attempts.c.instance_uuid == row.uuid,
                        attempts.c.number == number,
                    )
                    .values(selection=json.dumps(selection, separators=(",", ":")).encode())
                )
        last = rows[-1]
        after = sa.or_(
            instances.c.cell_uuid > last.cell_uuid,
            sa.and_(instances.c.cell_uuid == last.cell_uuid, instances.c.uuid > last.uuid),
        )
