"""The base of all other packages: data model, messages, errors, message bus, database, configuration and commands."""
