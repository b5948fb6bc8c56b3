"""Run each test of this folder on SQLite and on MariaDB, and the tests marked so on the in-memory store as well."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.databases import migrated
from support.placement_store.builders import InMemoryStore, Store
from support.placement_store.move_builders import SMALL, Moving, Server, disk
from support.placement_store.move_ledger import build
from support.placement_store.reshape_builders import Reshaping

from moorage.db.database import Database
from placement_store.schema import MAIN

DATABASES = ("sqlite", "mariadb")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on both databases, or on those that the closest mark `backends` names."""
    if "backend" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("backends")
        marks = {"mariadb": [pytest.mark.servers]}
        backends = [pytest.param(name, marks=marks.get(name, ())) for name in (mark.args if mark else DATABASES)]
        metafunc.parametrize("backend", backends, scope="module")


@pytest.fixture(scope="module")
def database(
    backend: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database | None]:
    """A database with the schema; None for the in-memory store."""
    if backend == "memory":
        yield None
        return
    if backend == "sqlite":
        url = migrated.sqlite(tmp_path_factory.mktemp("store") / "main.sqlite", MAIN)
    else:
        url = request.getfixturevalue("migrated_mariadb").url(MAIN)
    database = Database(url, "main")
    yield database
    database.close()


@pytest.fixture
def store(database: Database | None) -> Store:
    """An empty store."""
    if database is None:
        return InMemoryStore()
    store = Store(database)
    store.empty()
    return store


@pytest.fixture
def other_process(database: Database) -> Iterator[Store]:
    """The store of another process on the same database."""
    again = Database(database.url.render_as_string(hide_password=False), "main")
    yield Store(again)
    again.close()


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.servers)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/empty.sqlite"
    url: str = request.getfixturevalue("mariadb_url")
    return url


@pytest.fixture
def host(store: Store) -> str:
    return store.provider("host", VCPU=8, MEMORY_MB=8192)


@pytest.fixture
def burdened(store: Store, host: str, pool: str) -> Server:
    """A server with foreign amounts: a third VCPU, and 5 GB of the pool."""
    return Server(store, host, pool).others_put({host: SMALL | {"VCPU": 3}, **disk(pool, 25)})


@pytest.fixture
def reshaping(store: Store) -> Reshaping:
    return Reshaping(store)


# --- Moves ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(store: Store) -> str:
    return store.provider("source", VCPU=8, MEMORY_MB=8192)


@pytest.fixture
def destination(store: Store) -> str:
    return store.provider("destination", VCPU=8, MEMORY_MB=8192)


@pytest.fixture
def third(store: Store) -> str:
    return store.provider("third", VCPU=8, MEMORY_MB=8192)


@pytest.fixture
def pool(store: Store) -> str:
    return store.provider("pool", DISK_GB=100)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store on SQLite with the hosts and pools of the properties of moves."""
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('moves')}/main.sqlite", "main")
    yield build(database)
    database.close()


@pytest.fixture
def moving(store: Store, source: str) -> Moving:
    """An instance whose claim its source has accepted."""
    return Moving(store, {source: SMALL}).build()


@pytest.fixture
def i1(store: Store, source: str, pool: str) -> Moving:
    """A small instance on its source, with 50 GB of a pool."""
    return Moving(store, {source: SMALL, **disk(pool, 50)}).build()
