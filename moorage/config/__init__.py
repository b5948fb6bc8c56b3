"""The options of all services, and how a configuration is read and checked."""
