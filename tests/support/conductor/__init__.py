"""Conductors under test, between fakes of their peers that keep the contracts."""
