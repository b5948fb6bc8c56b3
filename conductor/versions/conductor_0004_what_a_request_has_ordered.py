"""Find what a request has ordered."""

from alembic import op

revision = "conductor_0004"
down_revision = "conductor_0003"


def upgrade() -> None:
    """Find what a request has ordered."""
    op.create_index("ix_conductor_instances_request", "conductor_instances", ["request_id"], unique=False)
    op.create_index("ix_conductor_migrations_request", "conductor_migrations", ["request_id"], unique=False)
