"""The Alembic revisions of the conductors' two schemas."""
