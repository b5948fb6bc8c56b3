"""An upgrade waits for a transaction that reads a table, and claims continue meanwhile."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import Connection, text
from support.placement_store.builders import Store

from moorage import errors, ids
from moorage.db.database import Database
from placement_store.commands.db_upgrade import Place, upgrade
from placement_store.schema import MAIN

#: Seconds for which one try to change a table waits; transactions that begin later wait as long.
TRY = 1.0


@pytest.fixture
def store(mariadb_url: str) -> Iterator[Store]:
    """A store without a column that an upgrade adds, and that claims do not need."""
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


def claiming_until(store: Store, host: str, is_over: Callable[[], bool]) -> dict[str, float]:
    """Claim for one new consumer after another; return the seconds that each claim took."""
    seconds = {}
    while not is_over():
        consumer, begun = ids.fresh(), time.monotonic()
        store.claim(consumer, {host: {"VCPU": 1}})
        seconds[consumer] = time.monotonic() - begun
    return seconds


@contextmanager
def endless_reader(url: str) -> Iterator[Connection]:
    """A transaction that has read the consumers, and that the server does not end, even if it is idle for long."""
    database = Database(url, MAIN.name, idle_transaction=0.0)
    with closing(database), database.engine.connect() as reader:
        reader.execute(text("SELECT COUNT(*) FROM consumers"))
        yield reader


def has_column(database: Database) -> bool:
    found = database.read(lambda connection: list(connection.execute(text("SHOW COLUMNS FROM consumers"))))
    return "migration_of" in {row[0] for row in found}


def test_claims_continue_while_an_upgrade_waits_for_a_reader_and_it_ends_after_the_reader(
    store: Store,
    mariadb_url: str,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    database, host = store.database, store.provider("host", VCPU=1_000_000)
    with ThreadPoolExecutor(2) as threads, endless_reader(mariadb_url) as reader:
        upgrading = threads.submit(upgrade, Place("main", mariadb_url))

        def has_waited() -> bool:
            return caplog.text.count("waiting for transactions that use a table: ALTER TABLE consumers") >= 2

        beside_reader = claiming_until(store, host, lambda: has_waited() or upgrading.done())
        assert not upgrading.done()
        assert not has_column(database)
        reader.rollback()
        # The table is changed during the following claims.
        beside_change = claiming_until(store, host, upgrading.done)
        assert upgrading.result() == ("main_0003", MAIN.head())

    assert has_column(database)
    assert len(beside_reader) > 10
    assert beside_change
    claimed = beside_reader | beside_change
    counts = f"{len(beside_reader)} during the read, {len(beside_change)} during the change"
    record_property("measured", f"claims: {counts}; the longest took {max(claimed.values()):.2f} s")
    assert max(claimed.values()) < TRY + 1.5, "no claim may wait for longer than one try"
    assert {claim.consumer_uuid for claim in store.listed(limit=len(claimed) + 1)} == claimed.keys()
    assert store.used(host) == {"VCPU": len(claimed)}
    assert store.is_sound()


def test_an_upgrade_that_fails_because_of_a_reader_names_the_change_and_can_be_repeated(
    store: Store, mariadb_url: str
) -> None:
    changes = r"ALTER TABLE consumers ADD COLUMN migration_of .*\.$"
    with endless_reader(mariadb_url), pytest.raises(errors.SchemaInUse, match=changes):
        upgrade(Place("main", mariadb_url), patience=0.1)
    assert MAIN.revision(store.database) == "main_0003"

    assert upgrade(Place("main", mariadb_url), patience=0.1) == ("main_0003", MAIN.head())
    assert has_column(store.database)
