"""Placeholder of this release's revision."""

revision = "main_0007"
down_revision = "main_0006"


def upgrade() -> None:
    """Change nothing yet."""
