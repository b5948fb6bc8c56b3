"""Plug-ins: the lists of enabled ones, loading by entry point, and time limits."""
