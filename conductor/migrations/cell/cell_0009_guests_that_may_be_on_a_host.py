"""Let the index of attempts by host find those whose guests may be there, without the history of the host."""

from moorage.db import schema_changes

revision = "cell_0009"
down_revision = "cell_0008"


def upgrade() -> None:
    """Add the index of attempts by host and guest, and drop the former one, which is its beginning."""
    schema_changes.create_index("ix_cell_attempts_on_host", "cell_attempts", ["cell_uuid", "host", "guest_gone"])
    schema_changes.drop_index("ix_cell_attempts_host", "cell_attempts")
