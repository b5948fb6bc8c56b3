"""The host registry in the store: reports, heartbeats, loads, metadata, aggregates, and the deletion of hosts."""
