"""Find instances by their host, and keep what cells say of what goes on on their hosts."""

import sqlalchemy as sa
from alembic import op

from moorage.columns import document_type

revision = "main_0006"
down_revision = "main_0005"


def upgrade() -> None:
    """Find instances by their host, and keep what cells say of what goes on on their hosts."""
    op.create_index("ix_consumers_root", "consumers", ["root_provider_id"], unique=False)
    op.add_column("hosts", sa.Column("io_ops", sa.Integer(), server_default="0", nullable=False))
    op.add_column("hosts", sa.Column("failed_builds", sa.Double(), server_default="0", nullable=False))
    op.add_column("hosts", sa.Column("image_properties", document_type(), nullable=True))
    op.add_column("hosts", sa.Column("load_at", sa.Double(), server_default="0", nullable=False))
