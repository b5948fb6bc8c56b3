"""Connections to a database cluster: all connections of a process go to the first available host.

Row locks on one node of a Galera cluster do not hold on the other nodes; at COMMIT a node certifies only the written
rows (ADR 28). So all processes write to the same node, the first available one in the list. A process that has changed
to another node returns when the first is available again. The list may also be a primary and its replicas: a read-only
host, such as a replica, is used only if no other host is available.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, cast

from pymysql.err import MySQLError, OperationalError
from sqlalchemy import exc

from moorage import errors
from moorage.db.hosts import DatabaseHost
from moorage.db.mysql_connection import MySQLConnection

LOG = logging.getLogger(__name__)

#: Seconds after which an unavailable host is tried again before the available ones. Arbitrary.
_RETRY_SECONDS = 10.0
#: The connect time-out in seconds for an earlier host while a later one is in use: a thread waits for it. Arbitrary.
_RETRY_TIMEOUT = 1.0
#: Seconds for which a new connection is not replaced. Arbitrary.
_FRESH_SECONDS = 1.0
#: Counting the nodes behind one address: the number of samples, the seconds between two, the extra connections of each.
_SAMPLES, _SAMPLE_SECONDS, _CONNECTIONS = 3, 0.5, 3

#: Galera's and MySQL's error codes: a node that has left its cluster; an unknown variable; TLS that the client cannot
#: set up.
_NOT_PREPARED, _NO_SUCH_VARIABLE, _NO_TLS = 1047, 1193, 2026
#: The TLS settings of a URL that name files.
_TLS_FILES = ("ca", "capath", "cert", "key")
_SYNCED, _DONOR = "4", "2"
#: Makes a transaction wait until the node has applied everything that the cluster had committed before, whether its
#: first statement reads, updates or inserts. Otherwise a new writer node would refuse requests because of stale rows.
_CAUSAL = "SET SESSION wsrep_sync_wait = 7"
_STATUS = (
    "SHOW GLOBAL STATUS WHERE Variable_name IN "
    "('wsrep_ready', 'wsrep_local_state', 'wsrep_cluster_status', 'wsrep_gcomm_uuid')"
)
#: Compares the value as text: in newer releases of MariaDB it has more values than ON and OFF.
_READING_ALONE = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'innodb_read_only') AND Value <> 'OFF'"


class ClusterConnector:
    """Opens the connections of one pool, all to the same host.

    :param hosts: the hosts, in order of preference.
    """

    def __init__(self, hosts: Sequence[DatabaseHost]) -> None:
        self._hosts = hosts
        #: The host of the newest connection. A pooled connection to another host is replaced at its next use.
        self._current = 0
        #: For each host that was unavailable, the time until which other hosts are tried before it.
        self._avoided: dict[int, float] = {}
        #: The time at which a host before the current one is tried again.
        self._retry_at = 0.0
        self._is_one_writer = False

    def connect(self, _dialect: Any, _record: Any, words: Any, named: Any) -> MySQLConnection:
        """Connect to the first available host; a handler of SQLAlchemy's event ``do_connect``.

        :raises MySQLError: no host is available; the error of the last one tried.
        :raises ConfigurationError: connections to one address reach several nodes of a Galera cluster.
        """
        connection = self._connected(words, named)
        number = connection.host_number
        if connection.node and not self._is_one_writer:
            try:
                self._require_one_writer(connection, words, named)
            except BaseException:
                _close(connection)
                raise
        if number != self._current:
            LOG.warning("The database is now used at %s", self._hosts[number])
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            self._current = number
        return connection

    def check_out(self, connection: MySQLConnection, _record: Any, _proxy: Any) -> None:
        """Replace a pooled connection if it is not to the current host, or if an earlier host may be available again.

        A handler of SQLAlchemy's event ``checkout``.

        :raises DisconnectionError: the pool must make a new connection.
        """
        now = time.monotonic()
        if now - connection.made_at < _FRESH_SECONDS:
            return  # the pool makes a new connection twice at most
        if connection.host_number != self._current:
            raise exc.DisconnectionError
        if self._current > 0 and now > self._retry_at:
            # Only this thread tries the earlier host; the others continue with the current one.
            self._retry_at = now + _RETRY_SECONDS
            raise exc.DisconnectionError

    def _connected(self, words: Any, named: Any) -> MySQLConnection:
        """Return a connection to the first available host; donors and read-only hosts are the last choice.

        :raises MySQLError: no host is available.
        """
        last_fault: MySQLError | None = None
        kept: MySQLConnection | None = None
        for number in self._in_order():
            try:
                connection = self._open(number, words, dict(named))
            except MySQLError as fault:
                self._avoid(number, fault)
                last_fault = fault
                continue
            if connection.last_resort is None or len(self._hosts) == 1:
                self._avoided.pop(number, None)
                _close(kept)
                return connection
            self._avoid(number, connection.last_resort)
            _close(kept)
            kept = connection
        if kept is not None:
            return kept
        raise cast(MySQLError, last_fault)

    def _in_order(self) -> list[int]:
        """Return the numbers of the hosts, in order of preference; recently unavailable hosts come last."""
        now = time.monotonic()
        return sorted(range(len(self._hosts)), key=lambda number: (self._avoided.get(number, 0.0) > now, number))

    def _avoid(self, number: int, reason: object) -> None:
        if len(self._hosts) == 1:
            return
        now = time.monotonic()
        if self._avoided.get(number, 0.0) < now:  # log once, although each thread with a lost connection comes here
            LOG.warning("The database is not used at %s: %s", self._hosts[number], reason)
        self._avoided[number] = now + _RETRY_SECONDS

    def _open(self, number: int, words: Any, named: dict[str, Any]) -> MySQLConnection:
        """Connect to one host, and verify that it is available.

        :raises MySQLError: it is not available.
        """
        host = self._hosts[number]
        if number < self._current:
            named["connect_timeout"] = min(named["connect_timeout"], _RETRY_TIMEOUT)
        given = {"host": host.name, "port": host.port}
        named.update({name: value for name, value in given.items() if value is not None})
        try:
            connection = MySQLConnection(*words, **named)
        except OSError as fault:  # from the files: the driver translates errors of the network and the server
            files = ", ".join(f"{name} {value}" for name, value in named.get("ssl", {}).items() if name in _TLS_FILES)
            raise OperationalError(_NO_TLS, f"its TLS cannot be set up ({files}): {fault}") from fault
        connection.host_number, connection.made_at = number, time.monotonic()
        try:
            _join(connection)
            if len(self._hosts) > 1 and _only_reads(connection):
                connection.last_resort = "it only reads"
        except BaseException:
            _close(connection)
            raise
        return connection

    def _require_one_writer(self, connection: MySQLConnection, words: Any, named: Any) -> None:
        """Verify that a host is a single node, and not a proxy that distributes connections over several nodes.

        The check is repeated, because a proxy may just be changing from one node to another.

        :raises ConfigurationError: at each check, simultaneous connections reach several nodes.
        """
        for _ in range(_SAMPLES):
            nodes = {connection.node, *self._nodes(connection.host_number, words, named)}
            if len(nodes) == 1:
                self._is_one_writer = True
                return
            time.sleep(_SAMPLE_SECONDS)
        host = self._hosts[connection.host_number]
        raise errors.ConfigurationError(
            reason=f"behind the database's address {host} connections reach {len(nodes)} nodes of a Galera cluster: "
            "let the proxy use one of them, with the others as its backup, or list the nodes as hosts of the URL"
        )

    def _nodes(self, number: int, words: Any, named: Any) -> set[str | None]:
        """Return the nodes that several simultaneous connections to a host reach.

        :raises MySQLError: the host is not available.
        """
        with ExitStack() as opened:
            nodes = set()
            for _ in range(_CONNECTIONS):
                other = self._open(number, words, dict(named))
                opened.callback(_close, other)
                nodes.add(other.node)
            return nodes


def _join(connection: MySQLConnection) -> None:
    """Prepare a connection to a node of a Galera cluster; do nothing for any other server.

    :raises MySQLError: the node is not a synced member of its cluster.
    """
    if not _is_galera(connection):
        return
    with connection.cursor() as cursor:
        cursor.execute(_STATUS)
        status = dict(cursor.fetchall())
        state = status.get("wsrep_local_state")
        is_member = status.get("wsrep_ready") == "ON" and status.get("wsrep_cluster_status") == "Primary"
        if not is_member or state not in (_SYNCED, _DONOR):
            raise OperationalError(_NOT_PREPARED, f"the node is not synced with its cluster: {status}")
        cursor.execute(_CAUSAL)
    connection.node = status.get("wsrep_gcomm_uuid")
    if state == _DONOR:
        # A donor answers, but may delay writes as long as it sends its data to another node.
        connection.last_resort = "it gives its data to another node"


def _only_reads(connection: MySQLConnection) -> bool:
    with connection.cursor() as cursor:
        return bool(cursor.execute(_READING_ALONE))


def _is_galera(connection: MySQLConnection) -> bool:
    if "MariaDB" not in cast(Any, connection).server_version:
        return False
    with connection.cursor() as cursor:
        try:
            cursor.execute("SELECT @@GLOBAL.wsrep_on")
        except OperationalError as fault:
            if fault.args[0] != _NO_SUCH_VARIABLE:  # the server was built without Galera
                raise
            return False
        return bool(cursor.fetchone()[0])


def _close(connection: MySQLConnection | None) -> None:
    if connection is not None:
        # Close without the protocol's QUIT message, which a silent server would not read.
        cast(Any, connection)._force_close()  # noqa: SLF001
