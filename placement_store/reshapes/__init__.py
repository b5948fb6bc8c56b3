"""Reshapes: how inventories, and all that is allocated of them, move between providers, all at once or not at all."""
