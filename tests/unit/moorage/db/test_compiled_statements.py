"""Test that databases of one process share compiled statements if dialect and server version are the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Select, literal, select
from sqlalchemy.engine.interfaces import CacheStats

from moorage import ids
from moorage.db.database import Database


@pytest.fixture
def databases(tmp_path: Path) -> Iterator[list[Database]]:
    both = [Database(f"sqlite:///{tmp_path}/{name}.sqlite", "test") for name in ("first", "second")]
    yield both
    for database in both:
        database.close()


def asked(database: Database, statement: Select[int]) -> tuple[int, CacheStats]:
    """Return the answer to a statement, and whether it had been compiled before."""
    with database.engine.connect() as connection:
        result = connection.execute(statement)
        return result.scalar_one(), result.context.cache_hit


def number(value: int, name: str) -> Select[int]:
    return select(literal(value).label(name))


def test_a_statement_is_compiled_once_for_all_databases_and_each_gets_its_own_values(databases: list[Database]) -> None:
    first, second = databases
    name = f"n{ids.fresh()}"

    assert asked(first, number(1, name)) == (1, CacheStats.CACHE_MISS)
    assert asked(second, number(2, name)) == (2, CacheStats.CACHE_HIT)
    assert asked(first, number(3, name)) == (3, CacheStats.CACHE_HIT)


def test_a_server_of_another_version_gets_its_own_compiled_statements(databases: list[Database]) -> None:
    first, second = databases
    name = f"n{ids.fresh()}"
    # The version is known once there was a connection.
    asked(second, number(1, "any"))
    second.engine.dialect.server_version_info = (3, 0)

    assert asked(first, number(1, name)) == (1, CacheStats.CACHE_MISS)
    assert asked(second, number(2, name)) == (2, CacheStats.CACHE_MISS)
    assert asked(second, number(3, name)) == (3, CacheStats.CACHE_HIT)
