"""Record returning hosts, guests that nothing is known of, and claims that are not wanted."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import document_type, name_type, uuid_type

revision = "cell_0002"
down_revision = "cell_0001"


def upgrade() -> None:
    """Record returning hosts, guests that nothing is known of, and claims that are not wanted."""
    schema_changes.add_column(
        "cell_hosts", sa.Column("is_returning", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    schema_changes.create_table(
        "cell_guests",
        sa.Column("cell_uuid", uuid_type(), nullable=False),
        sa.Column("host", name_type(), nullable=False),
        sa.Column("attempt_id", uuid_type(), nullable=False),
        sa.Column("agent", name_type(), nullable=False),
        sa.Column("guest", document_type(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("cell_uuid", "host", "attempt_id"),
    )
    schema_changes.create_table(
        "cell_disowned",
        sa.Column("cell_uuid", uuid_type(), nullable=False),
        sa.Column("claim_id", uuid_type(), nullable=False),
        sa.Column("consumer_uuid", uuid_type(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("cell_uuid", "claim_id"),
    )
    schema_changes.create_index("ix_cell_disowned_created_at", "cell_disowned", ["created_at"])
