"""Databases for tests: with their tables as new, copied, dumped, interrupted, and behind wires that fail."""
