"""Make heartbeats of hosts cheaper."""

from moorage.db import schema_changes

revision = "main_0008"
down_revision = "main_0007"


def upgrade() -> None:
    """Replace the index that every heartbeat has to change by one of the hosts that are up or down."""
    schema_changes.create_index("ix_hosts_up", "hosts", ["up"])
    schema_changes.drop_index("ix_hosts_heartbeat", "hosts")
