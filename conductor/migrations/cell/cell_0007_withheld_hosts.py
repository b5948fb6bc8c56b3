"""Record which hosts an agent withholds, and make heartbeats cheaper."""

import sqlalchemy as sa

from moorage.db import schema_changes

revision = "cell_0007"
down_revision = "cell_0006"


def upgrade() -> None:
    """Add the time at which a host was last withheld, and drop the index that every heartbeat has to change."""
    schema_changes.add_column("cell_hosts", sa.Column("withheld_at", sa.Double(), nullable=True))
    schema_changes.drop_index("ix_cell_hosts_seen", "cell_hosts")
