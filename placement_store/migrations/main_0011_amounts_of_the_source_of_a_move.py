"""Record where the amounts of a move's source were when the destination was claimed."""

import sqlalchemy as sa

from moorage.db import schema_changes
from moorage.db.columns import document_type

revision = "main_0011"
down_revision = "main_0010"


def upgrade() -> None:
    """Add the column to consumers; the former release neither reads nor writes it."""
    schema_changes.add_column("consumers", sa.Column("source_amounts", document_type(), nullable=True))
