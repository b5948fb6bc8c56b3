"""Record which code works on the schema."""

from moorage import schema_changes

revision = "conductor_0005"
down_revision = "conductor_0004"


def upgrade() -> None:
    """Record which code works on the schema."""
    # Everything in this revision expands the schema, so that the code of the revision before works on it.
    schema_changes.declare_oldest_code("conductor", "conductor_0004")
