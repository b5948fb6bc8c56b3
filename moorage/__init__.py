"""The common base of all packages: data model, messages, errors, message bus, database, configuration, commands."""
