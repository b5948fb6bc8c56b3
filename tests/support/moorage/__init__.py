"""Configurations, counts of metrics, spans, and calls that wait for a batch: for the tests of all services."""
