"""Filters: each answers whether a host may serve a request."""
