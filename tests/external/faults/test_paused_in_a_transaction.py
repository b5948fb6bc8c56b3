"""A process that is paused in the middle of a transaction loses its row locks after a while."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Connection, select
from support.databases import paused_writer
from support.databases.paused_writer import COUNTERS

from harness.waiting import wait_until
from moorage import errors
from moorage.db.database import Database


@contextmanager
def _paused(url: str, first: str, tries: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is stopped while its transaction is open."""
    with subprocess.Popen([sys.executable, paused_writer.__file__, url, first, str(tries)]) as process:
        try:
            wait_until(
                lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED or process.poll() is not None,
                "the pause",
            )
            assert process.returncode is None
            yield process
        finally:
            process.kill()


def _count(database: Database) -> int:
    found: int = database.read(lambda connection: connection.execute(select(COUNTERS.c.n)).scalar_one())
    return found


@pytest.fixture
def database(mariadb_url: str) -> Iterator[Database]:
    """A database with one row."""
    opened = paused_writer.open_database(mariadb_url)
    with opened.engine.begin() as connection:
        COUNTERS.create(connection)
        connection.execute(COUNTERS.insert().values(id=1, n=0))
    yield opened
    opened.close()


@pytest.mark.parametrize("first", ["locked", "changed"])
def test_the_locks_of_a_process_paused_in_a_transaction_end_and_its_work_is_done_once_after_it_is_resumed(
    database: Database, mariadb_url: str, tmp_path: Path, first: str
) -> None:
    with _paused(mariadb_url, first, tmp_path / "tries") as process:
        database.write(lambda connection: paused_writer.add(connection, 100))
        assert _count(database) == 100

        process.send_signal(signal.SIGCONT)

        assert process.wait(60.0) == 0
        # Its first try was rolled back, and all of its work was done again.
        assert _count(database) == 110 + (first == "changed")
        assert (tmp_path / "tries").read_text().count("begun") == 2


def test_a_write_of_a_row_that_stays_locked_fails_after_a_few_waits(database: Database, mariadb_url: str) -> None:
    holder = paused_writer.open_database(mariadb_url, idle_transaction=0.0)
    tries: list[None] = []

    def work(connection: Connection) -> None:
        tries.append(None)
        paused_writer.add(connection, 1)

    with holder.engine.begin() as connection:
        paused_writer.lock(connection)
        with pytest.raises(errors.Overloaded):
            database.write(work)
    holder.close()

    assert len(tries) == 5
    assert len(tries) < database.tries
