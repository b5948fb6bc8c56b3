"""Service processes: start and stop, heartbeats, stored requests and retention."""
