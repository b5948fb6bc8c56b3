"""Add the index of attempts that have ended and whose guests may be left."""

from moorage.db import schema_changes

revision = "cell_0008"
down_revision = "cell_0007"


def upgrade() -> None:
    """Add the index of the states of attempts whose guests may be left."""
    schema_changes.create_index("ix_cell_attempts_guest", "cell_attempts", ["cell_uuid", "guest_gone", "state"])
