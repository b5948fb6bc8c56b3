"""Operators who type commands and read what they print."""
