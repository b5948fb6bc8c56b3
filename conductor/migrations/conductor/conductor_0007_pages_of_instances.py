"""Add the index by which pages of the instances that exist are read."""

from moorage.db import schema_changes

revision = "conductor_0007"
down_revision = "conductor_0006"


def upgrade() -> None:
    """Add the index of states and numbers."""
    schema_changes.create_index("ix_conductor_instances_state_id", "conductor_instances", ["state", "id"])
