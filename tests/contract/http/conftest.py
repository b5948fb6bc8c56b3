"""Run each test of this folder on a server with SQLite and on one with MariaDB, each started once per session."""

from collections.abc import Iterator

import pytest
from support.http.api import Api, served
from support.http.replies import Http


@pytest.fixture(scope="session", params=["sqlite", pytest.param("mariadb", marks=pytest.mark.servers)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A running server, with the data of earlier tests."""
    folder = tmp_path_factory.mktemp("http")
    if request.param == "sqlite":
        url = f"sqlite:///{folder}/main.sqlite"
    else:
        url = request.getfixturevalue("mariadb").create_database("placement_http")
    with served(url, folder / "log", "--workers", "1", "--threads", "4") as api:
        yield api


@pytest.fixture
def api(server: Api) -> Api:
    """A client of a server whose store is empty except for names."""
    server.empty()
    return server


@pytest.fixture
def http(server: Api) -> Http:
    """A client that returns whole replies."""
    return Http(server.url)
