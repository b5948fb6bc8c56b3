"""Test MariaDB over TLS: the certificates that are trusted, and the connections that are encrypted."""

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from support.processes.tls import Tls, issue

from harness.servers import MariaDBServer
from moorage import errors
from moorage.db.database import Database


@pytest.fixture(scope="module")
def url(mariadb_over_tls: MariaDBServer) -> str:
    return mariadb_over_tls.create_database("over_tls")


def cipher_of(url: str, host: str = "127.0.0.1", **parameters: object) -> str:
    """Return the cipher of a connection; empty without TLS."""
    address = make_url(url).set(host=host).update_query_dict({name: str(value) for name, value in parameters.items()})
    database = Database(address.render_as_string(hide_password=False), "main", pool_size=1)
    try:
        status = text("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        return str(database.read(lambda connection: connection.execute(status).one().Value))
    finally:
        database.close()


def test_a_server_with_a_certificate_of_the_authority_is_trusted(url: str, tls: Tls) -> None:
    assert cipher_of(url, ssl_ca=tls.authority)
    assert cipher_of(url, ssl_ca=tls.authority, ssl_cert=tls.certificate, ssl_key=tls.key)


def test_a_server_with_a_certificate_of_another_authority_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(errors.StoreUnavailable, match="certificate verify failed"):
        cipher_of(url, ssl_ca=issue(tmp_path, "127.0.0.1").authority)


def test_a_replaced_authority_file_applies_to_the_next_connection(url: str, tls: Tls, tmp_path: Path) -> None:
    file = issue(tmp_path, "127.0.0.1").authority
    address = make_url(url).update_query_dict({"ssl_ca": str(file)})
    with closing(Database(address.render_as_string(hide_password=False), "main", pool_size=1)) as database:
        with pytest.raises(errors.StoreUnavailable, match="certificate verify failed"):
            database.read(lambda _: None)
        file.write_bytes(tls.authority.read_bytes())
        database.read(lambda _: None)


def test_a_server_with_another_name_in_its_certificate_is_refused(url: str, tls: Tls) -> None:
    with pytest.raises(errors.StoreUnavailable, match="Hostname mismatch"):
        cipher_of(url, "localhost", ssl_ca=tls.authority)


def test_without_an_authority_connections_are_encrypted_and_any_server_is_trusted(url: str) -> None:
    assert cipher_of(url, "localhost")


def test_tls_is_switched_off_in_the_url(url: str) -> None:
    assert not cipher_of(url, ssl_disabled="true")
    assert cipher_of(url, ssl_disabled="false")
