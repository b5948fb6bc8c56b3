"""Record which code works on the schema."""

from moorage import schema_changes

revision = "cell_0006"
down_revision = "cell_0005"


def upgrade() -> None:
    """Record which code works on the schema."""
    # Everything in this revision expands the schema, so that the code of the revision before works on it.
    schema_changes.declare_oldest_code("cell", "cell_0005")
