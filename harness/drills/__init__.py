"""Drills: a private cloud is harmed or overloaded while it works, and checked at the end."""
