"""If there are more transactions than connections in the pool, they fail in bounded time, and no connection leaks."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import QueuePool, text
from support.processes.stopwatch import Stopwatch

from harness.servers import MariaDBServer
from moorage import context, errors
from moorage.db.database import Database

CONNECTIONS, WAIT, CALLERS = 2, 0.5, 12


@pytest.fixture
def database(mariadb_url: str) -> Iterator[Database]:
    opened = Database(mariadb_url, "main", pool_size=CONNECTIONS, pool_timeout=WAIT)
    yield opened
    opened.close()


def one(database: Database) -> int:
    found: int = database.read(lambda connection: connection.scalar(text("SELECT 1")))
    return found


def in_use(database: Database) -> int:
    pool = database.engine.pool
    assert isinstance(pool, QueuePool)
    return pool.checkedout()


@contextmanager
def all_in_use(database: Database) -> Iterator[None]:
    """Hold every connection of the pool in a transaction."""
    begun, may_end = threading.Barrier(CONNECTIONS + 1), threading.Event()

    def hold() -> None:
        database.read(lambda connection: (connection.scalar(text("SELECT 1")), begun.wait(10), may_end.wait(30)))

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        holding = [threads.submit(hold) for _ in range(CONNECTIONS)]
        begun.wait(10)
        try:
            yield
        finally:
            may_end.set()
            for each in holding:
                each.result(10)


def test_a_transaction_without_a_free_connection_fails_after_the_pools_time_out_and_leaks_none(
    database: Database, mariadb: MariaDBServer
) -> None:
    def refused(_number: int) -> float:
        begun = time.monotonic()
        with pytest.raises(errors.Overloaded, match="no connection to the database of main came free"):
            one(database)
        return time.monotonic() - begun

    with all_in_use(database):
        for _ in range(2):
            with ThreadPoolExecutor(CALLERS) as threads:
                waits = list(threads.map(refused, range(CALLERS)))
            assert min(waits) >= WAIT * 0.9
            assert max(waits) < WAIT + 2.0
        assert in_use(database) == CONNECTIONS

    assert in_use(database) == 0
    with ThreadPoolExecutor(CALLERS) as threads:
        assert list(threads.map(lambda _: one(database), range(CALLERS))) == [1] * CALLERS
    [(connections,)] = mariadb.execute(
        "SELECT COUNT(*) FROM information_schema.processlist WHERE db = %s", str(database.url.database)
    )
    assert connections == CONNECTIONS


def test_a_transaction_whose_deadline_passes_while_it_waits_is_not_begun(database: Database) -> None:
    with all_in_use(database):
        watch = Stopwatch()
        with context.bound(deadline=time.monotonic() + WAIT / 5), pytest.raises(errors.Unavailable):
            one(database)
        assert watch.seconds < WAIT + 1.0
    assert in_use(database) == 0
