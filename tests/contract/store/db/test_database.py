"""Test the transactions of a database: the snapshot of a read-only one, and lookups that lock few rows."""

from collections.abc import Iterator
from functools import partial

import pytest
from sqlalchemy import Connection, text

from moorage.db.database import Database

COUNT = text("SELECT COUNT(*) FROM seen")


@pytest.fixture
def writer(empty_url: str) -> Iterator[Database]:
    database = Database(empty_url, "test")
    database.write(lambda connection: connection.execute(text("CREATE TABLE seen (n INT)")) and None)
    yield database
    database.close()


@pytest.fixture
def reader(empty_url: str, writer: Database) -> Iterator[Database]:
    """A database with one connection, so that settings left by one transaction would affect the next."""
    database = Database(empty_url, "test", pool_size=1)
    yield database
    database.close()


def twice(writer: Database, connection: Connection) -> tuple[int, int]:
    """Count rows before and after another connection inserts one."""
    before = connection.scalar(COUNT)
    writer.write(lambda other: other.execute(text("INSERT INTO seen VALUES (1)")) and None)
    return before, connection.scalar(COUNT)


def test_all_statements_of_a_snapshot_read_see_the_same_rows(writer: Database, reader: Database) -> None:
    assert reader.read_one_moment(lambda connection: twice(writer, connection)) == (0, 0)
    assert reader.read_one_moment(lambda connection: twice(writer, connection)) == (1, 1)


def test_a_plain_read_after_a_snapshot_read_sees_each_committed_write(writer: Database, reader: Database) -> None:
    reader.read_one_moment(lambda connection: connection.scalar(COUNT))

    before, after = reader.read(lambda connection: twice(writer, connection))

    # In SQLite, every transaction reads a snapshot.
    assert (before, after) == ((0, 0) if reader.is_sqlite else (0, 1))


def test_a_long_list_of_values_is_looked_up_by_key(mariadb_url: str) -> None:
    database = Database(mariadb_url, "test")
    listed = ", ".join(str(number) for number in range(5_000))
    locking = text(f"EXPLAIN SELECT id FROM seen WHERE id IN ({listed}) ORDER BY id FOR UPDATE")

    def work(connection: Connection) -> list[str]:
        connection.execute(text("CREATE TABLE seen (id INT PRIMARY KEY)"))
        connection.execute(text("INSERT INTO seen VALUES (1), (2)"))
        return [row.table for row in connection.execute(locking)]

    # Only the table: the list is not a second table that may be joined in any order.
    assert database.write(work) == ["seen"]
    database.close()


def test_a_snapshot_read_is_repeated_if_a_table_is_rebuilt_meanwhile(mariadb_url: str) -> None:
    database = Database(mariadb_url, "test")
    for name in ("seen", "other"):
        database.write(partial(Connection.execute, statement=text(f"CREATE TABLE {name} (n INT)")))
    moments: list[int] = []

    def work(connection: Connection) -> int:
        moments.append(connection.scalar(COUNT))
        if len(moments) == 1:  # as an operator does to free disk space
            database.write(lambda other: other.execute(text("OPTIMIZE TABLE other")).all() and None)
        return int(connection.scalar(text("SELECT COUNT(*) FROM other")))

    assert database.read_one_moment(work) == 0
    assert moments == [0, 0]
    database.close()
