"""What keeps the store right in the long run: reconciler, audit, recount, pruning."""
