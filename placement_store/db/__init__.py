"""Access the store's tables: ids of names, bulk statements, retries of stale reads, and the change feed."""
