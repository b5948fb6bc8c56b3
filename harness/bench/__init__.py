"""Benchmarks: `moorage bench`."""
