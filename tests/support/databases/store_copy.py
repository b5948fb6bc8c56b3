"""Copies of a database that are restored later while clients use it: the file of SQLite, a dump of MariaDB."""

import contextlib
import sqlite3
import subprocess
import tempfile
from pathlib import Path

from sqlalchemy.engine import make_url

from moorage.db.database import Database

Copy = bytes


def copied(database: Database) -> Copy:
    """Return a copy of all data of a database."""
    if database.is_sqlite:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "copy.sqlite")
            _copy(_file(database), str(copy))
            return copy.read_bytes()
    dumped = subprocess.run(
        ["mariadb-dump", *_server(database), "--single-transaction"], check=True, capture_output=True, timeout=60
    )
    return dumped.stdout


def put_back(database: Database, copy: Copy) -> None:
    """Restore a database, including its counters."""
    if not database.is_sqlite:
        subprocess.run(["mariadb", *_server(database)], input=copy, check=True, capture_output=True, timeout=60)
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "copy.sqlite").write_bytes(copy)
        _copy(str(Path(folder, "copy.sqlite")), _file(database))


def _copy(source: str, target: str) -> None:
    """Copy a file while other connections have it open."""
    with (
        contextlib.closing(sqlite3.connect(source, timeout=30.0)) as before,
        contextlib.closing(sqlite3.connect(target, timeout=30.0)) as after,
    ):
        before.backup(after)


def _file(database: Database) -> str:
    return str(make_url(str(database.engine.url)).database)


def _server(database: Database) -> list[str]:
    url = database.engine.url
    words = [f"--host={url.host}", f"--port={url.port}", f"--user={url.username}"]
    if url.password:
        words.append(f"--password={url.password}")
    return [*words, str(url.database)]
