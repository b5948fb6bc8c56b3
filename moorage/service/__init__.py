"""Processes that serve: start and stop, heartbeats, stored requests and retention."""
