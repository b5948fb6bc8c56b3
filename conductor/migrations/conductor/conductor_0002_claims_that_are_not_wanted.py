"""Record claims that are not wanted."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import uuid_type

revision = "conductor_0002"
down_revision = "conductor_0001"


def upgrade() -> None:
    """Record claims that are not wanted."""
    schema_changes.create_table(
        "conductor_disowned",
        sa.Column("claim_id", uuid_type(), nullable=False),
        sa.Column("consumer_uuid", uuid_type(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("claim_id"),
    )
    schema_changes.create_index("ix_conductor_disowned_created_at", "conductor_disowned", ["created_at"])
