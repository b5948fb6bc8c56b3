"""Test that errors name unusable parameters of a database's URL, and never show the password."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from moorage import errors
from moorage.db.database import Database
from moorage.db.schemas import known_schemas

#: No server listens on this port.
URL = "mysql+pymysql://service:secret@127.0.0.1:1/moorage?"


def test_a_certificate_that_cannot_be_loaded_is_named_and_the_store_is_unavailable(tmp_path: Path) -> None:
    empty, missing = tmp_path / "empty.pem", tmp_path / "missing.pem"
    empty.write_text("no certificate")
    for settings, file in (
        (f"ssl_ca={empty}", empty),
        (f"ssl_ca={missing}", missing),
        (f"ssl_cert={missing}&ssl_key={missing}", missing),
    ):
        database = Database(f"{URL}{settings}", "main")
        with pytest.raises(errors.StoreUnavailable, match="TLS cannot be set up") as caught:
            database.read(lambda _connection: None)
        assert str(file) in str(caught.value)
        assert "secret" not in str(caught.value)
        database.close()


@pytest.mark.parametrize(
    "parameter",
    [
        "no_such_parameter=1",
        "connect_timeout=soon",
        "ssl_check_hostname=perhaps",
        "isolation_level=x",
        "ssl_disabled=perhaps",
        "ssl_verify_cert=true",
        "ssl_verify_identity=true",
    ],
)
def test_a_parameter_that_the_driver_refuses_is_a_configuration_error(parameter: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=f"the main database .*{parameter.partition('=')[0]}") as caught:
        Database(f"{URL}{parameter}", "main")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["/f?timeout=soon", "/f?cached_statements=many", "/f?check_same_thread=x", "host/f"])
def test_a_url_of_a_file_that_the_driver_refuses_is_a_configuration_error(url: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="the URL of the main database cannot be understood"):
        Database(f"sqlite://{url}", "main")


def test_parameters_that_the_driver_supports_are_accepted() -> None:
    Database(f"{URL}charset=utf8mb4&unix_socket=/run/mysqld.sock&ssl_ca=/ca.pem&connect_timeout=3", "main").close()


@pytest.mark.parametrize("end", ["", "/", "/?charset=utf8mb4"])
def test_a_url_of_a_server_without_the_name_of_a_database_is_a_configuration_error(end: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="the URL of the main database names no database") as caught:
        Database(f"mysql+pymysql://service:secret@127.0.0.1:1{end}", "main")
    assert "secret" not in str(caught.value)


def test_the_name_of_a_database_may_be_in_a_file_of_the_driver() -> None:
    Database("mysql+pymysql://service:secret@127.0.0.1:1/?read_default_file=/my.cnf", "main").close()


@pytest.mark.parametrize("charset", ["latin1", "utf8"])
def test_a_charset_in_which_not_every_name_can_be_sent_is_a_configuration_error(charset: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=f"charset={charset}: it has to be utf8mb4"):
        Database(f"{URL}charset={charset}", "main")


def test_a_file_that_cannot_be_looked_for_is_a_store_that_cannot_be_reached(tmp_path: Path) -> None:
    # As for a file in a directory that this user may not search, the system refuses to tell whether it exists.
    database = Database(f"sqlite:///{tmp_path / ('name' * 100)}", "main")
    with pytest.raises(errors.StoreUnavailable, match="unable to open"):
        known_schemas()["main"].revision(database)
    database.close()


def test_a_file_that_is_no_database_or_is_damaged_is_refused(tmp_path: Path) -> None:
    junk, damaged = tmp_path / "junk", tmp_path / "damaged"
    junk.write_text("no database\n" * 1000)
    with closing(sqlite3.connect(damaged)) as connection:
        connection.execute("CREATE TABLE one (n INT)")
    content = damaged.read_bytes()
    # The header of the file ends here, and its first page begins.
    damaged.write_bytes(content[:100] + b"\xff" * (len(content) - 100))

    for file, reason in ((junk, "check the path of the file in the URL"), (damaged, "restore the file from a backup")):
        with (
            closing(Database(f"sqlite:///{file}", "main")) as database,
            pytest.raises(errors.StoreRefused, match=rf"{file}.*\); {reason}\."),
        ):
            database.read(lambda connection: connection.execute(text("SELECT * FROM one")))
