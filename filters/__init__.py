"""Filters: each decides whether a host may serve a request."""
