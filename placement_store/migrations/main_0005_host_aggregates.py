"""Create the tables of host aggregates and of their hosts."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import document_type, id_type, name_type, uuid_type

revision = "main_0005"
down_revision = "main_0004"


def upgrade() -> None:
    """Create the tables of host aggregates and of their hosts."""
    schema_changes.create_table(
        "host_aggregates",
        sa.Column("aggregate_id", id_type(), primary_key=True, autoincrement=False),
        sa.Column("name", name_type(), nullable=False, unique=True),
        sa.Column("metadata", document_type(), nullable=False),
        sa.Column("seq", id_type(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
    )
    schema_changes.create_table(
        "host_aggregate_hosts",
        sa.Column("aggregate_id", id_type(), primary_key=True, autoincrement=False),
        sa.Column("cell_uuid", uuid_type(), primary_key=True),
        sa.Column("service_host", name_type(), primary_key=True),
    )
    schema_changes.create_index("ix_host_aggregate_hosts_host", "host_aggregate_hosts", ["cell_uuid", "service_host"])
