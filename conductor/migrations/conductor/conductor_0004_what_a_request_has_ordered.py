"""Find what a request has ordered."""

from moorage.db import schema_changes

revision = "conductor_0004"
down_revision = "conductor_0003"


def upgrade() -> None:
    """Find what a request has ordered."""
    schema_changes.create_index("ix_conductor_instances_request", "conductor_instances", ["request_id"])
    schema_changes.create_index("ix_conductor_migrations_request", "conductor_migrations", ["request_id"])
