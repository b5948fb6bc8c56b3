"""A scheduler under test: hosts, trees, aggregates, plug-ins and requests."""
