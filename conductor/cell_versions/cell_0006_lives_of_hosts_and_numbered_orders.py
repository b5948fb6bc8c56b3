"""Placeholder of this release's revision."""

revision = "cell_0006"
down_revision = "cell_0005"


def upgrade() -> None:
    """Change nothing yet."""
