"""Deliberate breaks of promises: each changes one line of the product, and a test or the simulation has to notice."""
