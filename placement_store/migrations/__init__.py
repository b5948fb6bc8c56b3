"""Migrate the main schema."""
