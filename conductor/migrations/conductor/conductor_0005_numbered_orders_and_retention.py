"""Record which code works on the schema."""

import sqlalchemy as sa

from moorage.db import schema_changes

revision = "conductor_0005"
down_revision = "conductor_0004"


def upgrade() -> None:
    """Record which code works on the schema."""
    # Everything in this revision expands the schema, so that the code of the revision before works on it.
    schema_changes.declare_oldest_code("conductor", "conductor_0004")
    # Order numbers: an order that arrives after a later one is refused.
    number = sa.Column("order_number", sa.Integer, nullable=False, server_default="0")
    schema_changes.add_column("conductor_instances", number)
    # What housekeeping looks for in every round.
    schema_changes.create_index("ix_conductor_instances_state", "conductor_instances", ["state", "updated_at"])
    schema_changes.create_index("ix_conductor_requests_acknowledged_at", "conductor_requests", ["acknowledged_at"])
