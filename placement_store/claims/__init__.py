"""Claims and what becomes of them: put, accepted, swapped, moved, released, healed."""
