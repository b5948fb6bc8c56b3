"""Record which resource groups were attached to an instance after its build."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import document_type

revision = "cell_0004"
down_revision = "cell_0003"


def upgrade() -> None:
    """Record which resource groups were attached to an instance after its build."""
    schema_changes.add_column("cell_instances", sa.Column("attached", document_type(), nullable=True))
