"""Test upgrades that are killed at any statement or run concurrently: they end like an undisturbed upgrade."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.databases.interrupted_upgrade import migrate_killed_at_each_statement, structure

from harness.servers import MariaDBServer
from moorage.db.database import Database
from moorage.db.schemas import known_schemas, scripts_in

Make = Callable[[str], Database]
#: The number of init containers that a rolling update starts together.
AT_ONCE = 4
#: Imports all that it needs, and upgrades after it has read a line.
UPGRADE = """
import sys
from moorage.db.database import Database
from moorage.db.schemas import known_schemas
schema, database = known_schemas()[sys.argv[1]], Database(sys.argv[2], "test", pool_size=1)
print("ready", flush=True)
sys.stdin.readline()
print(schema.upgrade(database)[1])
"""


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.servers)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Return a function that creates an empty database with a given name."""
    with ExitStack() as closing:

        def new(name: str) -> Database:
            if request.param == "sqlite":
                url = f"sqlite:///{tmp_path}/{name}.sqlite"
            else:
                server: MariaDBServer = request.getfixturevalue("mariadb")
                url = server.create_database(f"interrupted_{name}")
                closing.callback(server.drop_database, f"interrupted_{name}")
            database = Database(url, "test", pool_size=1)
            closing.callback(database.close)
            return database

        yield new


EACH_SCHEMA = pytest.mark.parametrize("name", sorted(known_schemas()))


@EACH_SCHEMA
def test_an_upgrade_killed_at_each_statement_ends_like_an_undisturbed_one(make: Make, name: str) -> None:
    schema = known_schemas()[name]
    undisturbed, interrupted = make("undisturbed"), make("interrupted")
    before = structure(undisturbed)
    # One revision after the other, up to the newest: each upgrade starts on the tables that the interrupted one left.
    for script in reversed(list(scripts_in(schema.versions).walk_revisions())):
        schema.migrate(undisturbed, script.revision)
        statements = migrate_killed_at_each_statement(schema, interrupted, script.revision)

        assert statements, script.revision
        assert structure(interrupted) == structure(undisturbed) != before, script.revision
        assert schema.revision(interrupted) == script.revision
        before = structure(undisturbed)


@EACH_SCHEMA
def test_concurrent_upgrades_all_succeed_and_end_like_a_single_one(make: Make, name: str) -> None:
    schema = known_schemas()[name]
    alone, together = make("alone"), make("together")
    schema.upgrade(alone)
    url = together.url.render_as_string(hide_password=False)

    # In separate processes, because Alembic runs one migration at a time in each process.
    with ExitStack() as ending:
        running = [_process(name, url, ending) for _ in range(AT_ONCE)]
        for process in running:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin
            process.stdin.write("go on\n")
            process.stdin.flush()
        ends = [process.communicate()[0].strip() for process in running]

    assert ends == [schema.head()] * AT_ONCE
    assert structure(together) == structure(alone)


def _process(name: str, url: str, ending: ExitStack) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", UPGRADE, name, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    ending.callback(process.kill)
    return process
