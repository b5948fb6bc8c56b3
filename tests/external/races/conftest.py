"""The session's MariaDB with each of the usual isolation levels as its default."""

from collections.abc import Iterator

import pytest

from harness.servers import MariaDBServer


@pytest.fixture(scope="module", params=["READ-COMMITTED", "REPEATABLE-READ"])
def isolated_mariadb(request: pytest.FixtureRequest, mariadb: MariaDBServer) -> Iterator[MariaDBServer]:
    """The session's server with this default isolation level: an operator may have chosen either."""
    [[before]] = mariadb.execute("SELECT @@GLOBAL.tx_isolation")
    mariadb.execute(f"SET GLOBAL tx_isolation = '{request.param}'")
    yield mariadb
    mariadb.execute(f"SET GLOBAL tx_isolation = '{before}'")
