"""Real processes of a cloud, and the faults that tests cause in them."""
