"""Add the names of instances; for some time revision 0005 did so itself, so its tables may have them."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import name_type

revision = "conductor_0006"
down_revision = "conductor_0005"


def upgrade() -> None:
    """Add what operators call an instance."""
    schema_changes.add_column("conductor_instances", sa.Column("name", name_type()))
    schema_changes.create_index("ix_conductor_instances_name", "conductor_instances", ["name"])
