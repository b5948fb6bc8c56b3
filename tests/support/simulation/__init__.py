"""Support of the tests of the simulation."""
