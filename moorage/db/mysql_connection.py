"""PyMySQL connections with a bounded hand-shake and TCP keep-alive, which load no unused certificates."""

import functools
import socket
import ssl
from typing import TYPE_CHECKING, Any

from pymysql.connections import Connection
from pymysql.constants import CLIENT

if TYPE_CHECKING:
    _Connection = Connection[Any]  # generic only in its type stubs
else:
    _Connection = Connection

#: Idle seconds after which the kernel sends a keep-alive probe, and seconds between two probes.
_KEEPALIVE_SECONDS = 5
#: Milliseconds after which the kernel closes a connection whose peer acknowledges neither data nor probes. Shorter than
#: the time-out of an answer, so that a lost machine is detected earlier.
_UNACKNOWLEDGED_MILLISECONDS = 15_000


@functools.cache
def _any_server() -> ssl.SSLContext:
    """Return the TLS context for a URL without TLS settings: it encrypts if the server can, and checks no identity."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class MySQLConnection(_Connection):
    """A connection of PyMySQL with TCP keep-alive; its connect time-out covers the whole hand-shake.

    It loads certificates only if it checks them. PyMySQL loads all certificates of the machine for every connection,
    which takes 40 ms of CPU time each, and a service opens all its connections at once after an outage of its database.
    """

    #: The number of its host in the URL's list; and the time when the connection was made, by the monotonic clock.
    host_number = 0
    made_at = 0.0
    #: The id of the node of a Galera cluster; it changes when the node restarts.
    node: str | None = None
    #: The reason why its host is used only if no other one is available; None for a host that may be written.
    last_resort: str | None = None

    _read_timeout: float | None
    _write_timeout: float | None
    _sock: socket.socket

    #: Several statements may be sent together; see :mod:`moorage.db.script`.
    takes_scripts = True

    def __init__(self, *args: Any, client_flag: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, client_flag=client_flag | CLIENT.MULTI_STATEMENTS, **kwargs)

    def connect(self, sock: Any = None) -> None:
        """Connect and authenticate; the connect time-out also covers a server that accepts and then is silent."""
        answer, send = self._read_timeout, self._write_timeout
        self._read_timeout = self._write_timeout = self.connect_timeout
        super().connect(sock)
        self._read_timeout, self._write_timeout = answer, send
        if self._sock.family in (socket.AF_INET, socket.AF_INET6):
            for option, value in (
                (socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS),
                (socket.TCP_KEEPINTVL, _KEEPALIVE_SECONDS),
                (socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECONDS),
            ):
                self._sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def escape(self, obj: Any, mapping: Any = None) -> str:
        """Return a value as SQL; for numbers and None, the most frequent values, without PyMySQL's four calls."""
        if obj.__class__ is int:
            return str(obj)
        return "NULL" if obj is None else super().escape(obj, mapping)

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        # If the database's URL has TLS settings, PyMySQL applies them.
        return super()._create_ssl_ctx(sslp) if sslp else _any_server()  # type: ignore[misc]
