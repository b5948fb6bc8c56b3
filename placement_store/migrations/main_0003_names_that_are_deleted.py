"""Mark deleted resource classes and traits, whose ids stay reserved."""

import sqlalchemy as sa

from moorage.db import schema_changes

revision = "main_0003"
down_revision = "main_0002"


def upgrade() -> None:
    """Mark deleted resource classes and traits, whose ids stay reserved."""
    for table in ("resource_classes", "traits"):
        schema_changes.add_column(
            table, sa.Column("deleted", sa.Boolean(), server_default=sa.text("0"), nullable=False)
        )
