"""The options of all services; how a configuration is read and checked."""
