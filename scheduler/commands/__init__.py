"""The operator's commands for schedulers, hosts, host aggregates and explanations."""
