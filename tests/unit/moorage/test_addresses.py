"""Addresses in messages can be read and used: an IPv6 address is in brackets."""

from unittest import mock

import pytest

from moorage import errors
from moorage.addresses import address
from moorage.db.hosts import DatabaseHost
from moorage.service.listener import HttpListener


def test_an_ipv6_address_is_in_brackets() -> None:
    assert [address("db1", 3306), address("10.0.0.1", 80), address("::1", 19100)] == [
        *("db1:3306", "10.0.0.1:80", "[::1]:19100"),
    ]
    assert [str(DatabaseHost("::1", 3306)), str(DatabaseHost(None, None))] == ["[::1]:3306", "localhost:default port"]


@pytest.mark.parametrize(("host", "named"), [("127.0.0.1", "127.0.0.1:19100"), ("::1", "[::1]:19100")])
def test_a_listener_names_the_address_that_is_taken(host: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = mock.Mock(side_effect=OSError("Address already in use"))
    monkeypatch.setattr("moorage.service.http_server.HttpServer.bind", taken)
    listener = HttpListener(lambda *_: [], host, 19100, group="service", options="metrics_host and metrics_port")
    with pytest.raises(errors.ConfigurationError) as refused:
        listener.start()
    assert f"metrics_port: {named} cannot be listened on" in str(refused.value)
