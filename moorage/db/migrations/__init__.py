"""The Alembic environment of every schema; the migrations themselves stand in the folder that owns the tables."""
