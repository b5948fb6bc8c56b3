"""Test rows inserted by one statement: times of the database's clock, column defaults, and the size of statements."""

from collections.abc import Iterator

import pytest
from sqlalchemy import BigInteger, Column, Connection, Double, Integer, MetaData, Table, func, select
from support.databases.statements import executed

from moorage.db.columns import document_type, now
from moorage.db.database import Database
from moorage.db.new_rows import NewRows

NOTES = Table(
    "notes",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("number", BigInteger, nullable=False, default=7),
    Column("kind", Integer),
    Column("document", document_type()),
    Column("created_at", Double, nullable=False),
    Column("due_at", Double, nullable=False),
)
ROWS = NewRows(NOTES, created_at=0.0, due_at=60.0)


@pytest.fixture
def database(empty_url: str) -> Iterator[Database]:
    database = Database(empty_url, "test")
    database.write(NOTES.metadata.create_all)
    yield database
    database.close()


def test_rows_get_the_time_of_the_statement_column_defaults_and_common_values(
    database: Database,
) -> None:
    rows = [{"document": bytes([number]), "created_at": 1.0} for number in range(3)]

    def work(connection: Connection) -> None:
        ROWS.insert(connection, rows, kind=4)
        ROWS.insert(connection, [{"number": 8, "kind": None, "document": b"'%s\\"}])
        ROWS.insert(connection, [])

    database.write(work)
    columns = (NOTES.c.number, NOTES.c.kind, NOTES.c.document)
    found = database.read(lambda connection: connection.execute(select(*columns).order_by(NOTES.c.id)).all())
    assert found == [(7, 4, b"\0"), (7, 4, b"\1"), (7, 4, b"\2"), (8, None, b"'%s\\")]
    ages = select(now() - NOTES.c.created_at, NOTES.c.due_at - NOTES.c.created_at)
    for age, due_in in database.read(lambda connection: connection.execute(ages).all()):
        assert 0 <= age < 60
        assert due_in == pytest.approx(60, abs=0.01)


@pytest.mark.parametrize(
    ("rows", "statements"),
    [
        ([{"kind": number, "document": b""} for number in range(9_000)], 1),
        ([{"kind": number, "document": b""} for number in range(15_000)], 2),
        ([{"kind": number, "document": bytes(600_000)} for number in range(3)], 3),
        ([{"kind": 0, "document": bytes(2_000_000)}], 1),
    ],
)
def test_many_or_large_rows_are_divided_into_statements_that_the_database_accepts(
    database: Database, rows: list[dict[str, object]], statements: int
) -> None:
    with executed(database) as sent:
        database.write(lambda connection: ROWS.insert(connection, rows))
    assert len(sent) == statements
    assert database.read(lambda connection: connection.scalar(select(func.count()).select_from(NOTES))) == len(rows)
