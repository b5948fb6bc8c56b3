"""The migrations of the super conductor's records."""
