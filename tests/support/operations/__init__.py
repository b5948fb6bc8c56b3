"""Whole clouds for tests of operations: the table of operations, rooms, stages and random actors."""
