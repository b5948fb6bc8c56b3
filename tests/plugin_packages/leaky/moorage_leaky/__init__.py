"""Plug-ins of an operator that break."""
