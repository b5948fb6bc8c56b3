"""Make counts of the instances on hosts cheaper."""

from moorage.db import schema_changes

revision = "main_0010"
down_revision = "main_0009"


def upgrade() -> None:
    """Replace the index of consumers by root with one that has all columns of the count."""
    columns = ["root_provider_id", "consumer_type", "migration_of", "claim_id"]
    schema_changes.create_index("ix_consumers_placed", "consumers", columns)
    schema_changes.drop_index("ix_consumers_root", "consumers")
