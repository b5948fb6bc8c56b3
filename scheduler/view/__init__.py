"""The host view: a cache of all hosts in columns, kept up to date by the change feed, and its snapshots."""
