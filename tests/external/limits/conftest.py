"""One cloud of processes for the tests of this folder; each test leaves it without servers and without faults."""

from collections.abc import Iterator

import pytest
from support.databases.migrated import OnMariaDB
from support.processes.faulty_cloud import FaultyCloud

from conductor.schema import CELL, CONDUCTOR
from harness.drills.cloud import unlogged
from placement_store.schema import MAIN


@pytest.fixture(scope="package")
def cloud(migrated_mariadb: OnMariaDB, fresh_vhosts: Iterator[str]) -> Iterator[FaultyCloud]:
    """A cloud in which each role is a separate process."""
    with FaultyCloud(next(fresh_vhosts), migrated_mariadb.url(MAIN, CONDUCTOR, CELL)) as begun:
        begun.begin()
        yield begun


@pytest.fixture(autouse=True)
def _unlogged() -> Iterator[None]:
    """Log nothing during each test of this folder.

    The cloud exists until the end of the session, because the folder is no package of Python: meanwhile, tests of other
    folders read the log.
    """
    with unlogged():
        yield
