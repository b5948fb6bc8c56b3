"""The scheduler: the host registry, the host view, and decisions that claim hosts before they are returned."""
