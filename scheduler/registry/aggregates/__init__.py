"""Host aggregates: rows, changes, and their mirror in the store."""
