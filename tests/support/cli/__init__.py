"""Operators who type commands and read the output."""
