"""A decision: from a request to claimed hosts with alternates."""
