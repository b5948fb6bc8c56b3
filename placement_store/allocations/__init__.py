"""Allocations and their consumers: rows, and how they are written and read."""
