"""Create the super conductor's records."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import digest_type, document_type, id_type, name_type, request_id_type, uuid_type

revision = "conductor_0001"
down_revision = None


def upgrade() -> None:
    """Create the super conductor's records."""
    schema_changes.create_table(
        "conductor_instances",
        sa.Column("id", id_type(), autoincrement=True, nullable=False),
        sa.Column("uuid", uuid_type(), nullable=False),
        sa.Column("operation_uuid", uuid_type(), nullable=False),
        sa.Column("request_id", request_id_type(), nullable=False),
        sa.Column("project_id", name_type(), nullable=False),
        sa.Column("user_id", name_type(), nullable=False),
        sa.Column("request_spec", document_type(), nullable=False),
        sa.Column("state", name_type(), nullable=False),
        sa.Column("reason", document_type(), nullable=True),
        sa.Column("explanation", document_type(), nullable=True),
        sa.Column("cell_uuid", uuid_type(), nullable=True),
        sa.Column("selections", document_type(), nullable=True),
        sa.Column("handed_over", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("uuid"),
        sqlite_autoincrement=True,
    )
    schema_changes.create_index("ix_conductor_instances_operation", "conductor_instances", ["operation_uuid"])
    schema_changes.create_index("ix_conductor_instances_project", "conductor_instances", ["project_id", "state"])
    schema_changes.create_table(
        "conductor_operations",
        sa.Column("uuid", uuid_type(), nullable=False),
        sa.Column("kind", name_type(), nullable=False),
        sa.Column("request_id", request_id_type(), nullable=False),
        sa.Column("subject", name_type(), nullable=False),
        sa.Column("step", name_type(), nullable=False),
        sa.Column("step_number", sa.Integer(), nullable=False),
        sa.Column("payload", document_type(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("reason", document_type(), nullable=True),
        sa.Column("state", name_type(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=True),
        sa.Column("lease_owner", name_type(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("lease_number", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("uuid"),
    )
    schema_changes.create_index("ix_conductor_operations_due", "conductor_operations", ["state", "due_at"])
    schema_changes.create_index("ix_conductor_operations_subject", "conductor_operations", ["subject"])
    schema_changes.create_table(
        "conductor_requests",
        sa.Column("request_id", request_id_type(), nullable=False),
        sa.Column("method", name_type(), nullable=False),
        sa.Column("digest", digest_type(), nullable=False),
        sa.Column("result", document_type(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("acknowledged_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("request_id"),
    )
    schema_changes.create_index("ix_conductor_requests_created_at", "conductor_requests", ["created_at"])
