"""Calls that wait for a batch under way."""
