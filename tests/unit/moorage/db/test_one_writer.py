"""Test the check that connections to one address reach a single node of a Galera cluster."""

import socket
from typing import Any

import pytest
from pymysql.err import OperationalError

from moorage.db.cluster_connections import ClusterConnector
from moorage.db.hosts import DatabaseHost
from moorage.db.mysql_connection import MySQLConnection


class Refusing(ClusterConnector):
    """Connects to a node that refuses the third connection."""

    def __init__(self) -> None:
        super().__init__([DatabaseHost("node", 3306)])
        self.opened: list[MySQLConnection] = []

    def _open(self, number: int, words: Any, named: dict[str, Any]) -> MySQLConnection:
        if len(self.opened) == 2:
            raise OperationalError(1040, "Too many connections")
        connection = MySQLConnection(defer_connect=True)
        connection._sock, other = socket.socketpair()
        other.close()
        connection.node, connection.host_number = "one", number
        self.opened.append(connection)
        return connection


def test_a_check_that_fails_closes_all_connections_that_it_has_opened() -> None:
    connector = Refusing()

    with pytest.raises(OperationalError):
        connector.connect(None, None, (), {})

    assert [connection.open for connection in connector.opened] == [False, False]
