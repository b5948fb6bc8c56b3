"""Folders for files that need not survive, in memory if possible. A run removes those that killed runs have left."""

import os
import shutil
import tempfile
from pathlib import Path

import psutil

#: The file system in memory. In a container it may be missing, or too small for a database.
_MEMORY = Path("/dev/shm")  # noqa: S108
#: The prefix of folder names; the id of the process that made the folder follows.
_PREFIX = "moorage-run-"


def place(room: int = 0) -> Path | None:
    """Return the file system in memory; None if there is none, or if fewer bytes than ``room`` are free."""
    if not os.access(_MEMORY, os.W_OK):
        return None
    free = min(shutil.disk_usage(_MEMORY).free, psutil.virtual_memory().available)
    return _MEMORY if free >= room else None


def new(among: Path | str | None = None) -> str:
    """Create a folder in a folder, by default in that of temporary files; return its path."""
    return tempfile.mkdtemp(prefix=prefix(), dir=among)


def prefix() -> str:
    """Return the prefix of the names of this process's folders."""
    return f"{_PREFIX}{os.getpid()}-"


def remove_left(among: Path) -> None:
    """Remove the folders of processes that were killed."""
    for folder in among.glob(f"{_PREFIX}*-*"):
        process = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            shutil.rmtree(folder, ignore_errors=True)
