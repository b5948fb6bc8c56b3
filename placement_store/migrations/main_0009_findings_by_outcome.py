"""Add the index by which the reconciler's findings about existing claims are read."""

from moorage.db import schema_changes

revision = "main_0009"
down_revision = "main_0008"


def upgrade() -> None:
    """Add the index of outcomes."""
    schema_changes.create_index("ix_reconciled_outcome", "reconciled", ["outcome"])
