"""Databases for tests: new with tables, copied, dumped, interrupted, and behind connections that fail."""
