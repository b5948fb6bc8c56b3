"""What a connection to MySQL or MariaDB is made with: once for a process, and not for each connection."""

import functools
import ssl
from typing import TYPE_CHECKING, Any

from pymysql.connections import Connection

if TYPE_CHECKING:
    _Connection = Connection[Any]  # only those who describe its types say of what
else:
    _Connection = Connection


@functools.cache
def _any_server() -> ssl.SSLContext:
    """Return what is encrypted with where nothing is said of TLS: if the server does it at all, and whoever it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class MySQLConnection(_Connection):
    """A connection of PyMySQL's that reads no certificates which it would not check.

    PyMySQL reads all that the machine has for every connection: 40 ms of a processor each, and a service whose database
    was away makes all its connections anew at once.
    """

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        # Whatever the URL of the database says of TLS is PyMySQL's to understand.
        return super()._create_ssl_ctx(sslp) if sslp else _any_server()  # type: ignore[misc]


def connect(_dialect: Any, _record: Any, words: Any, named: Any) -> MySQLConnection:
    """Connect, as SQLAlchemy's event ``do_connect`` wants it."""
    return MySQLConnection(*words, **named)
