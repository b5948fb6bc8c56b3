"""Plug-ins: which are enabled, how they are loaded, and what happens when one does not end."""
