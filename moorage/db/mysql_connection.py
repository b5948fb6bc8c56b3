"""Connections to MySQL and MariaDB: no certificate read in vain, and none that waits for a silent server for long."""

import functools
import socket
import ssl
from typing import TYPE_CHECKING, Any

from pymysql.connections import Connection

if TYPE_CHECKING:
    _Connection = Connection[Any]  # only those who describe its types say of what
else:
    _Connection = Connection

#: Seconds without a word after which the kernel asks the other side for a sign of life, and between two such questions.
_KEEPALIVE_SECONDS = 5
#: Milliseconds after which the kernel gives up a connection whose other side acknowledges neither data nor questions.
#: Shorter than the time that an answer may take: a machine that is gone is found out before that.
_UNACKNOWLEDGED_MILLISECONDS = 15_000


@functools.cache
def _any_server() -> ssl.SSLContext:
    """Return the TLS context for a URL without TLS settings: encrypt if the server can, whoever it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class MySQLConnection(_Connection):
    """A connection of PyMySQL's whose hand-shake has the time-out of the connecting, and that notices a dead peer.

    It reads no certificates which it would not check. PyMySQL reads all that the machine has for every connection: 40
    ms of a processor each, and a service whose database was away makes all its connections anew at once.
    """

    _read_timeout: float | None
    _write_timeout: float | None
    _sock: socket.socket

    def connect(self, sock: Any = None) -> None:
        """Connect and authenticate; a server that takes the connection and then says nothing is given up soon."""
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

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        # Whatever the URL of the database says of TLS is PyMySQL's to understand.
        return super()._create_ssl_ctx(sslp) if sslp else _any_server()  # type: ignore[misc]


def connect(_dialect: Any, _record: Any, words: Any, named: Any) -> MySQLConnection:
    """Connect, as SQLAlchemy's event ``do_connect`` wants it."""
    return MySQLConnection(*words, **named)
