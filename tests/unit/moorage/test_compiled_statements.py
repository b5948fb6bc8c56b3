"""Databases of one process share what SQLAlchemy has compiled, where they speak the same dialect to the same server."""

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


def asked(database: Database, statement: Select[tuple[int]]) -> tuple[int, CacheStats]:
    """Return the answer to a statement, and whether it had been compiled before."""
    with database.engine.connect() as connection:
        result = connection.execute(statement)
        return result.scalar_one(), result.context.cache_hit


def number(value: int, name: str) -> Select[tuple[int]]:
    return select(literal(value).label(name))


def test_a_statement_is_compiled_once_for_all_databases_and_each_gets_its_own_values(databases: list[Database]) -> None:
    first, second = databases
    name = f"n{ids.fresh()}"

    assert asked(first, number(1, name)) == (1, CacheStats.CACHE_MISS)
    assert asked(second, number(2, name)) == (2, CacheStats.CACHE_HIT)
    assert asked(first, number(3, name)) == (3, CacheStats.CACHE_HIT)


def test_a_server_of_another_version_has_its_statements_compiled_for_itself(databases: list[Database]) -> None:
    first, second = databases
    name = f"n{ids.fresh()}"
    asked(second, number(1, "any"))  # it has met its server
    second.engine.dialect.server_version_info = (3, 0)

    assert asked(first, number(1, name)) == (1, CacheStats.CACHE_MISS)
    assert asked(second, number(2, name)) == (2, CacheStats.CACHE_MISS)
    assert asked(second, number(3, name)) == (3, CacheStats.CACHE_HIT)
