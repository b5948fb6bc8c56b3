"""Configurations from a file of a test."""

from pathlib import Path

from oslo_config import cfg

from moorage.config import options


def from_text(folder: Path, text: str) -> cfg.ConfigOpts:
    """Write a configuration file into a folder, and read it."""
    file = folder / "moorage.conf"
    file.write_text(text)
    return options.new(files=[file])
