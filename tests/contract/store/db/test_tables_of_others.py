"""Test that an upgrade leaves the database of another program as it is."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import inspect, text
from support.databases.interrupted_upgrade import structure

from moorage.cli.shell import main
from moorage.db.database import Database
from moorage.db.schemas import known_schemas, scripts_in


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.servers)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database."""
    sqlite = f"sqlite:///{tmp_path}/theirs.sqlite"
    database = Database(sqlite if request.param == "sqlite" else request.getfixturevalue("mariadb_url"), "main")
    yield database
    database.close()


@pytest.mark.parametrize("words", [("--dry-run",), ()])
def test_the_database_of_a_placement_is_refused_by_name_and_left_as_it_is(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    # Ours have the same columns, and others.
    for theirs in (
        "traits (id INTEGER PRIMARY KEY, name VARCHAR(255))",
        "allocations (id INTEGER PRIMARY KEY, used INTEGER, created_at TIMESTAMP, updated_at TIMESTAMP)",
    ):
        with database.engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {theirs}"))
    before = structure(database)
    file = tmp_path / "moorage.conf"
    url = database.url.render_as_string(hide_password=False)
    file.write_text(f"[database]\nconnection = {url}\n")

    assert main(["--config-file", str(file), "db", "upgrade", *words]) == 1

    refused = capsys.readouterr().err
    assert "has a table allocations of another program, with created_at, updated_at" in refused
    assert "Nothing was changed" in refused
    assert not database.url.password or database.url.password not in refused
    assert structure(database) == before


@pytest.mark.parametrize("name", sorted(known_schemas()))
def test_tables_that_only_resemble_ours_by_other_names_are_no_reason(database: Database, name: str) -> None:
    database.write(lambda connection: connection.execute(text("CREATE TABLE consumer_types (id INTEGER, other TEXT)")))
    schema = known_schemas()[name]
    assert schema.upgrade(database)[1] == schema.head()
    assert database.read(lambda connection: inspect(connection).has_table("consumer_types"))


@pytest.mark.parametrize("name", sorted(known_schemas()))
def test_tables_of_each_earlier_revision_are_ours_while_their_revision_is_not_recorded_yet(
    database: Database, name: str
) -> None:
    # So they look during a first upgrade, and after one that was interrupted.
    schema = known_schemas()[name]
    for script in reversed(list(scripts_in(schema.versions).walk_revisions())):
        schema.migrate(database, script.revision)
        with database.engine.begin() as connection:
            connection.execute(text(f"DELETE FROM {schema.version_table}"))
        assert schema.planned(database) == (None, schema.head())
        with database.engine.begin() as connection:
            connection.execute(text(f"INSERT INTO {schema.version_table} VALUES ('{script.revision}')"))


@pytest.mark.parametrize("name", sorted(known_schemas()))
def test_tables_whose_revision_was_lost_are_upgraded_again(database: Database, name: str) -> None:
    schema = known_schemas()[name]
    schema.upgrade(database)
    database.write(lambda connection: connection.execute(text(f"DROP TABLE {schema.version_table}")))
    assert schema.upgrade(database) == (None, schema.head())
