"""The audit of a cloud: collection of the state from its services, findings in it, and their healing."""
