"""The tables of the super conductor's schema: instances and migrations."""
