"""Test scripts: statements that are sent together have separate outcomes, and a failure rolls all of them back."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, exc, func, select

from moorage import errors
from moorage.db.database import Database
from moorage.db.new_rows import NewRows
from moorage.db.script import Script, StatementOutcome

THINGS = Table("things", MetaData(), Column("id", Integer, primary_key=True), Column("name", String(20), unique=True))
ROWS = NewRows(THINGS)


@pytest.fixture
def database(empty_url: str) -> Iterator[Database]:
    # One connection: a result that a script leaves unread would be returned to the next statement.
    database = Database(empty_url, "test", pool_size=1)
    database.write(THINGS.metadata.create_all)
    yield database
    database.close()


class NotEnough(Exception):
    """Report that an outcome does not suffice."""


def names(database: Database) -> list[str]:
    return list(database.read(lambda connection: connection.scalars(select(THINGS.c.name).order_by(THINGS.c.id))))


def test_statements_of_a_script_are_executed_in_order_with_separate_outcomes(database: Database) -> None:
    outcomes: list[StatementOutcome] = []

    def work(connection: Connection) -> int:
        script = Script(connection)
        ROWS.add_to(script, [{"name": "a;b"}, {"name": "50%s"}])
        script.add("UPDATE things SET name = 'c' WHERE id > 0 AND name = 'a;b'", then=outcomes.append)
        script.add("SELECT name FROM things ORDER BY id", then=outcomes.append)
        assert outcomes == []
        return int(script.connection.scalar(select(func.count()).select_from(THINGS)) or 0)

    assert database.write(work) == 2
    assert outcomes[0].rowcount == 1
    assert [tuple(row) for row in outcomes[1].rows] == [("c",), ("50%s",)]
    assert names(database) == ["c", "50%s"]


def test_a_failing_statement_ends_the_script_and_rolls_it_back(database: Database) -> None:
    def translated(fault: exc.DBAPIError) -> None:
        if isinstance(fault, exc.IntegrityError):
            raise NotEnough from fault

    def work(connection: Connection) -> None:
        script = Script(connection)
        ROWS.add_to(script, [{"name": "one"}])
        ROWS.add_to(script, [{"name": "one"}], translated)
        ROWS.add_to(script, [{"name": "two"}])
        script.run()

    with pytest.raises(NotEnough):
        database.write(work)
    assert names(database) == []
    database.write(lambda connection: ROWS.insert(connection, [{"name": "one"}]))
    assert names(database) == ["one"]


@pytest.mark.parametrize("fails_later", [False, True])
def test_an_insufficient_outcome_is_raised_before_a_later_error_and_rolls_back(
    database: Database, fails_later: bool
) -> None:
    def judge(outcome: StatementOutcome) -> None:
        if not outcome.rowcount:
            raise NotEnough

    def work(connection: Connection) -> None:
        script = Script(connection)
        ROWS.add_to(script, [{"name": "one"}])
        script.add("UPDATE things SET name = 'c' WHERE name = 'b'", then=judge)
        script.add("SELECT name FROM things")
        ROWS.add_to(script, [{"name": "one" if fails_later else "two"}])
        script.add("SELECT name FROM things")
        script.run()

    with pytest.raises(NotEnough):
        database.write(work)
    assert names(database) == []


def test_a_connection_lost_during_a_script_is_replaced(mariadb_url: str) -> None:
    database = Database(mariadb_url, "test", pool_size=1)
    database.write(THINGS.metadata.create_all)

    def work(connection: Connection) -> None:
        script = Script(connection)
        ROWS.add_to(script, [{"name": "one"}])
        script.add("KILL CONNECTION_ID()")
        script.add("SELECT name FROM things")
        script.run()

    with pytest.raises(errors.StoreUnavailable):
        database.write(work)
    assert names(database) == []
    database.close()
