"""Test `moorage db upgrade` of cells while the main schema, which has the list of cells, is not upgraded yet."""

from pathlib import Path

import pytest

from moorage import ids
from moorage.cli.shell import main
from moorage.db.database import Database
from placement_store.schema import MAIN


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """The configuration of a cloud with a cell, whose main schema is of a former release."""
    url = f"sqlite:///{tmp_path}/main.sqlite"
    database = Database(url, MAIN.name)
    MAIN.migrate(database, "main_0007")
    with database.engine.connect() as connection, connection.begin():
        row = f"INSERT INTO cells (uuid, name, created_at) VALUES ('{ids.fresh()}', 'west', 0)"
        connection.exec_driver_sql(row)
    database.close()
    file = tmp_path / "moorage.conf"
    file.write_text(f"[database]\nconnection = {url}\n")
    return file


def upgrade(config_file: Path, *words: str) -> int:
    return int(main(["--config-file", str(config_file), "db", "upgrade", *words]))


@pytest.mark.parametrize("words", [["--cell", "west"], ["--schema", "cell"], ["--schema", "cell", "--dry-run"]])
def test_an_upgrade_of_only_cells_is_refused_until_the_main_schema_is_upgraded(
    config_file: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert upgrade(config_file, *words) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "The main schema is at revision main_0007 and this version needs" in said.err


def test_a_dry_run_of_all_schemas_warns_that_it_does_not_show_the_cells(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upgrade(config_file, "--dry-run", "-f", "value", "-c", "schema") == 0
    said = capsys.readouterr()
    assert said.out.split() == ["main", "conductor"]
    assert "The records of cells are not shown" in said.err
    assert upgrade(config_file, "-f", "value", "-c", "schema", "-c", "cell") == 0
    said = capsys.readouterr()
    assert said.out.split() == ["main", "conductor", "cell", "west"]
    assert said.err == ""
