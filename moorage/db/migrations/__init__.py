"""What Alembic runs for every schema; the migrations themselves stand in the folder that owns the tables."""
