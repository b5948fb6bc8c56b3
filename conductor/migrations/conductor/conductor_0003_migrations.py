"""Record migrations."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import document_type, id_type, name_type, request_id_type, uuid_type

revision = "conductor_0003"
down_revision = "conductor_0002"


def upgrade() -> None:
    """Record migrations."""
    schema_changes.create_table(
        "conductor_migrations",
        sa.Column("id", id_type(), autoincrement=True, nullable=False),
        sa.Column("uuid", uuid_type(), nullable=False),
        sa.Column("instance_uuid", uuid_type(), nullable=False),
        sa.Column("cell_uuid", uuid_type(), nullable=False),
        sa.Column("request_id", request_id_type(), nullable=False),
        sa.Column("kind", name_type(), nullable=False),
        sa.Column("state", name_type(), nullable=False),
        sa.Column("source_host", name_type(), nullable=True),
        sa.Column("destination_host", name_type(), nullable=True),
        sa.Column("reason", document_type(), nullable=True),
        sa.Column("explanation", document_type(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("uuid"),
        sqlite_autoincrement=True,
    )
    schema_changes.create_index("ix_conductor_migrations_instance", "conductor_migrations", ["instance_uuid"])
    schema_changes.create_index("ix_conductor_migrations_state", "conductor_migrations", ["state"])
