"""Record which code works on the schema."""

import sqlalchemy as sa

from moorage import schema_changes

revision = "main_0007"
down_revision = "main_0006"


def upgrade() -> None:
    """Record which code works on the schema."""
    schema_changes.add_column(
        "hosts", sa.Column("description_number", sa.Integer(), server_default="0", nullable=False)
    )
    schema_changes.add_column("cells", sa.Column("alive_at", sa.Double(), server_default="0", nullable=False))
    # Everything in this revision expands the schema, so that the code of the revision before works on it.
    schema_changes.declare_oldest_code("main", "main_0006")
    schema_changes.add_column("services", sa.Column("stopped_at", sa.Double, nullable=True))
