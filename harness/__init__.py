"""A whole cloud in one process or many: demo, benchmarks, and what functional tests start."""
