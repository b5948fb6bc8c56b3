"""Weighers: each scores a host for a request."""
