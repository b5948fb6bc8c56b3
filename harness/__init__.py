"""Whole clouds in one process or several, for the demo, benchmarks and functional tests."""
