"""Drills: a private cloud is harmed or crowded while it works, and judged at the end."""
