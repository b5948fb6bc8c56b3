"""The audit of a cloud: what is asked of its services, what is found in the answers, and how it is healed."""
