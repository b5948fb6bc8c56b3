"""The migrations of the main schema."""
