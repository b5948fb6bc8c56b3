"""Serve Placement's HTTP API (microversions 1.0 to 1.39) from the store, beside topic `placement` of the bus."""
