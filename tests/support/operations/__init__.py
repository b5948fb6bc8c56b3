"""Whole clouds on which operations are played: the table of operations, rooms, stages and random actors."""
