"""Let resource classes and traits be deleted without giving their numbers away."""

import sqlalchemy as sa

from moorage.db import schema_changes

revision = "main_0003"
down_revision = "main_0002"


def upgrade() -> None:
    """Let resource classes and traits be deleted without giving their numbers away."""
    for table in ("resource_classes", "traits"):
        schema_changes.add_column(
            table, sa.Column("deleted", sa.Boolean(), server_default=sa.text("0"), nullable=False)
        )
