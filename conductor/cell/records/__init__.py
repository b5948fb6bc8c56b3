"""The tables of a cell's schema: instances, attempts, migrations and unknown guests."""
