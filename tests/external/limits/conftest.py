"""One cloud of processes for the tests of this folder, each of which leaves it as it was."""

import gc
import logging
from collections.abc import Iterator

import pytest
from support.databases.migrated import OnMariaDB
from support.processes.faulty_cloud import FaultyCloud

from conductor.schema import CELL, CONDUCTOR
from placement_store.schema import MAIN


@pytest.fixture(scope="package")
def cloud(migrated_mariadb: OnMariaDB, fresh_vhosts: Iterator[str]) -> Iterator[FaultyCloud]:
    """A cloud of which every role is a process of its own."""
    logging.disable()  # records of what has failed would keep dead sockets, to be found in a later test
    try:
        with FaultyCloud(next(fresh_vhosts), migrated_mariadb.url(MAIN, CONDUCTOR, CELL)) as begun:
            begun.begin()
            yield begun
    finally:
        logging.disable(logging.NOTSET)
        gc.collect()
