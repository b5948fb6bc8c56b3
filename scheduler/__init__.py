"""The scheduler: hosts known, the host view, the funnel, and destinations that are claimed before they are given."""
