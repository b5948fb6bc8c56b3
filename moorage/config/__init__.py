"""The options of all services, and reading and checking of a configuration."""
