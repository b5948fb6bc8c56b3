"""Number the lives of hosts and the reports of agents, and record which code works on the schema."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import name_type, uuid_type

revision = "cell_0006"
down_revision = "cell_0005"


def upgrade() -> None:
    """Add numbers of the lives of hosts and of the reports of agents, and record which code works on the schema."""
    schema_changes.add_column("cell_hosts", sa.Column("life", sa.Integer(), server_default="0", nullable=False))
    schema_changes.add_column(
        "cell_hosts", sa.Column("undescribed", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    schema_changes.add_column("cell_attempts", sa.Column("host_life", sa.Integer(), nullable=True))
    schema_changes.create_table(
        "cell_agents",
        sa.Column("cell_uuid", uuid_type(), nullable=False),
        sa.Column("agent", name_type(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("incarnation", uuid_type(), nullable=False),
        sa.Column("described", sa.Integer(), nullable=False),
        sa.Column("alive", sa.Integer(), nullable=False),
        sa.Column("providers", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("cell_uuid", "agent", "number"),
    )
    schema_changes.add_column("cell_attempts", sa.Column("accepted", sa.Boolean(), nullable=True))
    # Everything in this revision expands the schema, so that the code of the revision before works on it.
    schema_changes.declare_oldest_code("cell", "cell_0005")
    # Order numbers: an order that arrives after a later one is refused.
    for name in ("order_number", "refused_order_number", "guest_order_number"):
        number = sa.Column(name, sa.Integer, nullable=False, server_default="0")
        schema_changes.add_column("cell_instances", number)
    # A driver may find that an attempt would fail everywhere.
    schema_changes.add_column(
        "cell_attempts", sa.Column("no_other_host", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    # What housekeeping looks for in every round.
    schema_changes.create_index("ix_cell_instances_state", "cell_instances", ["cell_uuid", "state", "updated_at"])
    schema_changes.create_index("ix_cell_attempts_migration", "cell_attempts", ["cell_uuid", "migration_uuid"])
    schema_changes.create_index("ix_cell_requests_acknowledged_at", "cell_requests", ["acknowledged_at"])
