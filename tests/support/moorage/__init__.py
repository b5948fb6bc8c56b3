"""Configurations, clocks, counts of metrics, spans, and queued calls: for the tests of all services."""
