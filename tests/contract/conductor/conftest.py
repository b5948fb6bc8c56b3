"""The conductors' records on each store."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.databases import migrated

from conductor.schema import CELL, CONDUCTOR
from moorage.db.database import Database


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.servers)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database with the records of both kinds of conductors."""
    if request.param == "mariadb":
        url = request.getfixturevalue("migrated_mariadb").url(CONDUCTOR, CELL)
    else:
        url = migrated.sqlite(tmp_path / "records.sqlite", CONDUCTOR, CELL)
    database = Database(url, "test")
    yield database
    database.close()


@pytest.fixture
def patient_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transactions wait for each other however slow the machine is."""
    monkeypatch.setattr("moorage.db.shared_transactions.PATIENCE", 60.0)
