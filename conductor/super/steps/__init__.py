"""The steps of the super conductor's operations, one module for each kind."""
