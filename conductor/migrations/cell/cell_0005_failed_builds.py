"""Record which builds have failed on which host."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import name_type, uuid_type

revision = "cell_0005"
down_revision = "cell_0004"


def upgrade() -> None:
    """Record which builds have failed on which host."""
    schema_changes.create_table(
        "cell_failed_builds",
        sa.Column("cell_uuid", uuid_type(), nullable=False),
        sa.Column("attempt_id", uuid_type(), nullable=False),
        sa.Column("host", name_type(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("failed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("cell_uuid", "attempt_id"),
    )
    schema_changes.create_index("ix_cell_failed_builds_host", "cell_failed_builds", ["cell_uuid", "host"])
