"""A shim: all metadata, dependencies and entry points stand in pyproject.toml."""

from setuptools import setup

setup()
