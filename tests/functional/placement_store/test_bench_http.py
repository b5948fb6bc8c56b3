"""Test the command `moorage bench http`."""

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from moorage.cli.shell import main

WORDS = ("--providers", "20", "--requests", "10", "--clients", "2", "--workers", "1")


def tables(url: str) -> list[str]:
    """Return the names of a database's tables."""
    engine = sa.create_engine(url)
    names = sa.inspect(engine).get_table_names()
    engine.dispose()
    return names


def test_the_benchmark_over_http_measures_candidates_and_writes_and_leaves_the_database_empty(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/empty.sqlite"
    assert main(["bench", "http", "--database-url", url, *WORDS, "-f", "json"]) == 0

    rows = json.loads(capsys.readouterr().out)
    kinds = [*(f"candidates, limit={limit}" for limit in (1, 10, 1000)), "allocation write"]
    assert sorted((row["request"], row["clients"]) for row in rows) == sorted((k, n) for k in kinds for n in (1, 2))
    assert all(0 < row["p50_ms"] <= row["p99_ms"] and row["per_s"] > 0 for row in rows)
    assert tables(url) == []


def test_the_benchmark_over_http_is_refused_on_a_database_with_a_table_and_does_not_change_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/foreign.sqlite"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE foreign_table (id INTEGER)")
    engine.dispose()

    assert main(["bench", "http", "--database-url", url, *WORDS]) != 0

    assert "the database is not empty" in capsys.readouterr().err
    assert tables(url) == ["foreign_table"]
