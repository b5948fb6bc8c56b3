"""Placeholder of this release's revision."""

revision = "conductor_0005"
down_revision = "conductor_0004"


def upgrade() -> None:
    """Change nothing yet."""
