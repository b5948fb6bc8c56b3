"""Databases: connections, transactions, column types, schemas and their revisions."""
