"""The migrations of a cell's records."""
