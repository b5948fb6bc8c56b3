"""Test connections to MySQL: their TLS settings, and how they write values into statements."""

import ssl
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pymysql.connections import Connection

from moorage.db.mysql_connection import MySQLConnection


def unopened(**words: Any) -> Any:
    """Return a connection that is not open yet; the type stubs of the driver lack attributes that these tests read."""
    return MySQLConnection(defer_connect=True, **words)


def context(**words: Any) -> ssl.SSLContext:
    found: ssl.SSLContext = unopened(**words).ctx
    return found


def test_connections_without_tls_options_share_one_context_that_verifies_nothing() -> None:
    assert context() is context()
    assert context().verify_mode is ssl.CERT_NONE
    assert not context().check_hostname
    assert not unopened()._ssl_required


def test_a_connection_with_options_for_verification_verifies_the_certificate() -> None:
    assert context(ssl_verify_identity=True).verify_mode is ssl.CERT_REQUIRED
    assert unopened(ssl_verify_cert=True)._ssl_required


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
#: PyMySQL loads all certificates of the machine for each connection, so the examples share these.
OURS: Any = MySQLConnection(defer_connect=True)
DRIVERS: Any = Connection(defer_connect=True)


@given(VALUES.filter(lambda value: value == value and value not in (float("inf"), float("-inf"))))
def test_a_value_is_escaped_in_a_statement_as_by_the_driver(value: object) -> None:
    OURS.server_status = DRIVERS.server_status = 0
    assert OURS.escape(value) == DRIVERS.escape(value)
