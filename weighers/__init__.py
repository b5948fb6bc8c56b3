"""Weighers: each answers how good a host is for a request."""
