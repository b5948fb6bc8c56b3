"""Create the tables of services and of the reconciler's findings; index acknowledged requests by time."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import document_type, name_type, uuid_type

revision = "main_0002"
down_revision = "main_0001"


def upgrade() -> None:
    """Create the tables of services and of the reconciler's findings; index acknowledged requests by time."""
    schema_changes.create_table(
        "services",
        sa.Column("kind", name_type(), primary_key=True),
        sa.Column("name", name_type(), primary_key=True),
        sa.Column("cell_uuid", uuid_type(), primary_key=True),
        sa.Column("machine", name_type(), nullable=False),
        sa.Column("version", name_type(), nullable=False),
        sa.Column("first_heard_at", sa.Double(), nullable=False),
        sa.Column("heard_at", sa.Double(), nullable=False),
    )
    schema_changes.create_index("ix_services_heard_at", "services", ["heard_at"])
    schema_changes.create_table(
        "reconciled",
        sa.Column("claim_id", uuid_type(), primary_key=True),
        sa.Column("consumer_uuid", uuid_type(), nullable=False),
        sa.Column("owner", name_type(), nullable=False),
        sa.Column("outcome", name_type(), nullable=False),
        sa.Column("reason", document_type(), nullable=False),
        sa.Column("looked_at", sa.Double(), nullable=False),
    )
    schema_changes.create_index("ix_reconciled_looked_at", "reconciled", ["looked_at"])
    schema_changes.create_index("ix_requests_acknowledged_at", "requests", ["acknowledged_at"])
