"""Explain decisions: why this host was chosen, or why there was none."""
