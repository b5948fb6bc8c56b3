"""Databases for the clouds of this folder."""

import pytest
from support.databases.migrated import OnMariaDB

from conductor.schema import CELL, CONDUCTOR
from placement_store.schema import MAIN


@pytest.fixture
def migrated_url(migrated_mariadb: OnMariaDB) -> str:
    """The URL of a database on MariaDB with the empty tables of all schemas."""
    return migrated_mariadb.url(MAIN, CONDUCTOR, CELL)
