"""A deterministic simulation: a whole cloud in one thread, under a seeded clock, a seeded order, and seeded faults."""
