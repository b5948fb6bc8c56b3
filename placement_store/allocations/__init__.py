"""Read and write allocations and their consumers."""
