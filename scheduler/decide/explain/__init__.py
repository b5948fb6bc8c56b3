"""Explanations: why a request went where it went, or nowhere."""
