"""Maintain the store: reconciler, audit, recount, pruning, and the record of services."""
