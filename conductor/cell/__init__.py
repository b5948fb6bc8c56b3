"""The conductor of one cell: it tries hosts, moves and ends guests, and keeps the cell's records."""
