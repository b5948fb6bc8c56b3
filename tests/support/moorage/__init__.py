"""Configurations, clocks, counts of metrics and of executed lines, spans, and queued calls: for all services."""
