"""Test the hosts in the URL of a database, in the form of RabbitMQ's URLs and in SQLAlchemy's."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage import errors
from moorage.db.database import Database
from moorage.db.hosts import DatabaseHost, hosts_of, parse, without_hosts

NAMES = st.one_of(st.from_regex(r"[a-z][a-z0-9-]{0,9}(\.[a-z0-9-]{1,9}){0,2}", fullmatch=True), st.just("fe80::1"))
HOSTS = st.builds(DatabaseHost, NAMES, st.one_of(st.none(), st.integers(1, 65535)))


def written(host: DatabaseHost) -> str:
    name = f"[{host.name}]" if ":" in str(host.name) else str(host.name)
    return name if host.port is None else f"{name}:{host.port}"


@settings(deadline=None)
@given(st.lists(HOSTS, min_size=2, max_size=4))
def test_hosts_are_read_in_their_order_and_again_from_the_url_as_sqlalchemy_writes_it(
    hosts: list[DatabaseHost],
) -> None:
    url = parse(f"mysql+pymysql://u:p%2C@{','.join(map(written, hosts))}/moorage?charset=utf8mb4")

    assert list(hosts_of(url)) == hosts
    assert parse(url.render_as_string(hide_password=False)) == url
    assert (url.username, url.password, url.database) == ("u", "p,", "moorage")
    assert without_hosts(url).query == {"charset": "utf8mb4"}


def test_a_url_with_one_host_is_read_as_sqlalchemy_reads_it() -> None:
    url = parse("mysql+pymysql://u:p@db1:3307/moorage")

    assert hosts_of(url) == (DatabaseHost("db1", 3307),)
    assert without_hosts(url) == url
    assert hosts_of(parse("sqlite:////var/lib/a,b.sqlite")) == (DatabaseHost(None, None),)


@pytest.mark.parametrize("hosts", ["db1:x,db2", "db1,,db2", "db1,db2:", "[::1,db2"])
def test_a_list_that_cannot_be_read_is_refused_without_its_password(hosts: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="commas between several hosts") as refused:
        Database(f"mysql+pymysql://u:secret@{hosts}/moorage", "main")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("host", ["db..example.com", f"{'a' * 64}.example.com", ".db", "127.0.0.1:65536"])
@pytest.mark.parametrize("others", ["", ",db2"])
def test_a_host_that_cannot_exist_is_a_configuration_error_before_it_is_connected_to(host: str, others: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="the URL of the main database cannot be understood") as refused:
        Database(f"mysql+pymysql://u:secret@{host}{others}/moorage", "main")
    assert "secret" not in str(refused.value)


def test_several_hosts_are_refused_for_a_driver_that_supports_one() -> None:
    with pytest.raises(errors.ConfigurationError, match="several hosts, which only mysql"):
        Database("sqlite:///x.sqlite?host=a&host=b", "main")
