"""Real processes of a cloud, and the faults that tests inflict on them."""
