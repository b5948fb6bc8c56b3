"""The databases of an API that runs in the process of its test."""

from collections.abc import Iterator
from typing import Any

import pytest

from moorage.db.database import Database


@pytest.fixture
def closed_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the databases that an API opens in this process: otherwise they are open until the process ends."""
    opened: list[Database] = []
    configured = Database.configured

    def open_database(*arguments: Any, **options: Any) -> Database:
        opened.append(configured(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(Database, "configured", open_database)
    yield
    for database in opened:
        database.close()
