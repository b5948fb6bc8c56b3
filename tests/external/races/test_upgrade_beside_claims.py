"""An upgrade waits behind one open reader, and claims do not wait with it."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, text
from support.placement_store.builders import Store

from moorage import errors, ids
from moorage.db.database import Database
from placement_store.commands.db_upgrade import Place, upgrade
from placement_store.schema import MAIN

pytestmark = pytest.mark.servers

#: Seconds for which a change of a table is waited for, and everybody who comes after it with it.
TRY = 1.0


@pytest.fixture
def store(mariadb_url: str) -> Iterator[Store]:
    """A store with a table that an upgrade is to change, though what is missing is of no use to claims."""
    database = Database(mariadb_url, MAIN.name)
    MAIN.upgrade(database)
    for statement in (
        "ALTER TABLE consumers DROP COLUMN migration_of",
        "UPDATE alembic_version_main SET version_num = 'main_0003'",
    ):
        with database.engine.connect() as connection, connection.begin():
            connection.exec_driver_sql(statement)
    yield Store(database)
    database.close()


def as_before(connection: Connection) -> float:
    """Write to the table as a release does that knows nothing of what the upgrade adds; return the seconds."""
    begun = time.monotonic()
    connection.execute(
        text(
            "INSERT INTO consumers (uuid, project_id, user_id, generation, known_over_rpc, created_at, updated_at)"
            " VALUES (:uuid, 'p', 'u', 1, 1, 0, 0)"
        ),
        {"uuid": ids.fresh()},
    )
    return time.monotonic() - begun


def writing_until(database: Database, is_over: Callable[[], bool]) -> list[float]:
    seconds = []
    while not is_over():
        seconds.append(database.write(as_before))
    return seconds


def has_column(database: Database) -> bool:
    found = database.read(lambda connection: list(connection.execute(text("SHOW COLUMNS FROM consumers"))))
    return "migration_of" in {row[0] for row in found}


def test_writes_go_on_beside_an_upgrade_that_waits_for_a_reader_and_it_ends_after_the_reader(
    store: Store, mariadb_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = store.database
    with ThreadPoolExecutor(2) as threads, database.engine.connect() as reader:
        reader.execute(text("SELECT COUNT(*) FROM consumers"))  # and its transaction is not ended
        upgrading = threads.submit(upgrade, Place("main", mariadb_url))
        has_waited = threading.Event()

        def is_over() -> bool:
            if caplog.text.count("waiting for whoever uses a table: ALTER TABLE consumers") >= 2:
                has_waited.set()
            return has_waited.is_set()

        seconds = writing_until(database, is_over)
        assert not upgrading.done()
        assert not has_column(database)
        reader.rollback()
        assert upgrading.result(60) == ("main_0003", MAIN.head())

    assert has_column(database)
    assert max(seconds) < TRY + 1.5, "nobody waits for longer than for one try"
    assert len(seconds) > 10


def test_an_upgrade_whose_reader_does_not_end_says_what_it_waits_for_and_can_be_repeated(
    store: Store, mariadb_url: str
) -> None:
    with store.database.engine.connect() as reader:
        reader.execute(text("SELECT COUNT(*) FROM consumers"))
        with pytest.raises(errors.SchemaInUse, match=r"ALTER TABLE consumers ADD COLUMN migration_of .*\.$"):
            upgrade(Place("main", mariadb_url), patience=0.1)
    assert MAIN.revision(store.database) == "main_0003"

    assert upgrade(Place("main", mariadb_url), patience=0.1) == ("main_0003", MAIN.head())
    assert has_column(store.database)
