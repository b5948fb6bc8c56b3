"""Every test of this folder runs on SQLite and on MariaDB alike."""

from collections.abc import Iterator

import pytest
from placement_builders import Store

from moorage.database import Database
from placement_store import names
from placement_store.schema import MAIN


@pytest.fixture(scope="module", params=["sqlite", pytest.param("mariadb", marks=pytest.mark.servers)])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('store')}/main.sqlite"
    else:
        url = request.getfixturevalue("mariadb").create_database("placement_contract")
    database = Database(url, "main")
    MAIN.upgrade(database)
    yield database
    database.close()


@pytest.fixture
def store(database: Database) -> Store:
    """An empty store."""
    store = Store(database)
    store.empty()
    names.sync(store.database)
    return store


@pytest.fixture
def host(store: Store) -> str:
    return store.provider("host", VCPU=8, MEMORY_MB=8192)
