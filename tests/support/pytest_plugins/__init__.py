"""Plug-ins of pytest that watch every test."""
