"""Create a cell's records."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import digest_type, document_type, name_type, request_id_type, uuid_type

revision = "cell_0001"
down_revision = None


def upgrade() -> None:
    """Create a cell's records."""
    schema_changes.create_table(
        "cell_attempts",
        sa.Column("cell_uuid", uuid_type(), nullable=False),
        sa.Column("attempt_id", uuid_type(), nullable=False),
        sa.Column("instance_uuid", uuid_type(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("host", name_type(), nullable=False),
        sa.Column("agent", name_type(), nullable=False),
        sa.Column("claim_id", uuid_type(), nullable=True),
        sa.Column("state", name_type(), nullable=False),
        sa.Column("reason", document_type(), nullable=True),
        sa.Column("guest_gone", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("cell_uuid", "attempt_id"),
        sa.UniqueConstraint("cell_uuid", "instance_uuid", "number", name="uq_cell_attempts"),
    )
    schema_changes.create_index("ix_cell_attempts_host", "cell_attempts", ["cell_uuid", "host"])
    schema_changes.create_table(
        "cell_hosts",
        sa.Column("cell_uuid", uuid_type(), nullable=False),
        sa.Column("service_host", name_type(), nullable=False),
        sa.Column("nodename", name_type(), nullable=False),
        sa.Column("agent", name_type(), nullable=False),
        sa.Column("description", document_type(), nullable=False),
        sa.Column("description_number", sa.Integer(), nullable=False),
        sa.Column("acknowledged_number", sa.Integer(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("cell_uuid", "service_host", "nodename"),
    )
    schema_changes.create_index("ix_cell_hosts_agent", "cell_hosts", ["cell_uuid", "agent"])
    schema_changes.create_index("ix_cell_hosts_seen", "cell_hosts", ["cell_uuid", "last_seen"])
    schema_changes.create_table(
        "cell_instances",
        sa.Column("cell_uuid", uuid_type(), nullable=False),
        sa.Column("uuid", uuid_type(), nullable=False),
        sa.Column("request_id", request_id_type(), nullable=False),
        sa.Column("request_spec", document_type(), nullable=True),
        sa.Column("selections", document_type(), nullable=True),
        sa.Column("state", name_type(), nullable=False),
        sa.Column("reason", document_type(), nullable=True),
        sa.Column("attempt_number", sa.Integer(), nullable=False),
        sa.Column("host", name_type(), nullable=True),
        sa.Column("claim_id", uuid_type(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("cell_uuid", "uuid"),
    )
    schema_changes.create_index("ix_cell_instances_host", "cell_instances", ["cell_uuid", "host"])
    schema_changes.create_table(
        "cell_operations",
        sa.Column("cell_uuid", uuid_type(), nullable=False),
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
        sa.PrimaryKeyConstraint("cell_uuid", "uuid"),
    )
    schema_changes.create_index("ix_cell_operations_due", "cell_operations", ["cell_uuid", "state", "due_at"])
    schema_changes.create_index("ix_cell_operations_subject", "cell_operations", ["cell_uuid", "subject"])
    schema_changes.create_table(
        "cell_requests",
        sa.Column("request_id", request_id_type(), nullable=False),
        sa.Column("method", name_type(), nullable=False),
        sa.Column("digest", digest_type(), nullable=False),
        sa.Column("result", document_type(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("acknowledged_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("request_id"),
    )
    schema_changes.create_index("ix_cell_requests_created_at", "cell_requests", ["created_at"])
