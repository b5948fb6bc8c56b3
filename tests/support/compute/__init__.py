"""Agents and drivers under test."""
