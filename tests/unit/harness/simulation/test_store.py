"""The databases of a simulation: closed before a fork, and opened again on a copy."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.simulation.machine import store
from harness.simulation.machine.kernel import KERNEL


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    KERNEL.reset("test")
    store.FAULTS.reset()
    (tmp_path / "started").mkdir()
    with closing(store.connect(tmp_path / "started" / "file", isolation_level=None)) as made:
        made.execute("PRAGMA journal_mode=wal")
        made.execute("PRAGMA foreign_keys=on")
        made.create_function("twice", 1, lambda number: 2 * number)
        made.execute("CREATE TABLE kept (number INTEGER)")
        made.execute("INSERT INTO kept VALUES (21)")
        yield made


def copied(tmp_path: Path) -> Path:
    """Close the original files, continue on a copy of them, and return the folder of the copy."""
    store.let_go()
    assert KERNEL.is_atomic
    copy = shutil.copytree(tmp_path / "started", tmp_path / "copy")
    store.take_up(str(tmp_path / "started"), str(copy))
    assert not KERNEL.is_atomic
    return copy


def test_a_connection_continues_on_a_copy_and_the_original_file_stays_unchanged(
    connection: sqlite3.Connection, tmp_path: Path
) -> None:
    cursor = connection.cursor()
    copy = copied(tmp_path)
    cursor.execute("UPDATE kept SET number = twice(number)")
    assert connection.execute("SELECT number FROM kept").fetchall() == [(42,)]
    for folder, number in ((tmp_path / "started", 21), (copy, 42)):
        with closing(sqlite3.Connection(folder / "file")) as found:
            assert found.execute("SELECT number FROM kept").fetchall() == [(number,)]


def test_a_connection_keeps_its_settings_on_the_copy(connection: sqlite3.Connection, tmp_path: Path) -> None:
    copied(tmp_path)
    assert connection.execute("PRAGMA foreign_keys").fetchall() == [(1,)]
    assert connection.execute("SELECT julianday('now')").fetchall()[0][0] > 2_460_000
    assert connection.isolation_level is None


def test_a_later_connection_by_the_original_name_opens_the_copy(connection: sqlite3.Connection, tmp_path: Path) -> None:
    connection.execute("UPDATE kept SET number = 1")
    copied(tmp_path)
    connection.execute("UPDATE kept SET number = 2")
    with closing(store.connect(str(tmp_path / "started" / "file"))) as later:
        assert later.execute("SELECT number FROM kept").fetchall() == [(2,)]


def test_a_commit_on_the_copy_is_reported_under_the_original_name(
    connection: sqlite3.Connection, tmp_path: Path
) -> None:
    reported: list[tuple[str, str, list[str]]] = []
    copied(tmp_path)
    store.FAULTS.committed = lambda process, file, written: reported.append((process, file, sorted(written)))
    connection.execute("BEGIN")
    connection.execute("UPDATE kept SET number = 3")
    connection.commit()
    assert reported == [("outside", str(tmp_path / "started" / "file"), ["kept"])]


def test_a_closed_connection_is_not_opened_again(connection: sqlite3.Connection, tmp_path: Path) -> None:
    connection.close()
    copied(tmp_path)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_an_open_transaction_is_detected(connection: sqlite3.Connection) -> None:
    assert not store.is_in_transaction()
    connection.execute("BEGIN")
    assert store.is_in_transaction()
    connection.execute("ROLLBACK")
    assert not store.is_in_transaction()
