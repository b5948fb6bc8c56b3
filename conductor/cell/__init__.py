"""The conductor of one cell: it builds, moves and deletes guests, and keeps the cell's records."""
