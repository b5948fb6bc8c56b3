"""Reshapes: inventories and their allocations move between providers in one transaction."""
