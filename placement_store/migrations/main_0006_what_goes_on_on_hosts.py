"""Index consumers by their root provider, and record the loads of hosts."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import document_type

revision = "main_0006"
down_revision = "main_0005"


def upgrade() -> None:
    """Index consumers by their root provider, and record the loads of hosts."""
    schema_changes.create_index("ix_consumers_root", "consumers", ["root_provider_id"])
    schema_changes.add_column("hosts", sa.Column("io_ops", sa.Integer(), server_default="0", nullable=False))
    schema_changes.add_column("hosts", sa.Column("failed_builds", sa.Double(), server_default="0", nullable=False))
    schema_changes.add_column("hosts", sa.Column("image_properties", document_type(), nullable=True))
    schema_changes.add_column("hosts", sa.Column("load_at", sa.Double(), server_default="0", nullable=False))
