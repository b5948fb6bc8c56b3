"""Test the TLS settings of connections to MySQL."""

import ssl

from moorage.db.mysql_connection import MySQLConnection


def context(**words: object) -> ssl.SSLContext:
    """Return what a connection that has not been made yet will encrypt with."""
    return MySQLConnection(defer_connect=True, **words).ctx


def test_connections_of_which_nothing_is_said_encrypt_with_the_same_and_check_nothing() -> None:
    assert context() is context()
    assert context().verify_mode is ssl.CERT_NONE
    assert not context().check_hostname
    assert not MySQLConnection(defer_connect=True)._ssl_required


def test_a_connection_that_is_to_know_its_server_checks_its_certificate() -> None:
    assert context(ssl_verify_identity=True).verify_mode is ssl.CERT_REQUIRED
    assert MySQLConnection(defer_connect=True, ssl_verify_cert=True)._ssl_required
