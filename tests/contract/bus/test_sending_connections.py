"""Test the connections of the RabbitMQ driver that send: the loss of a host of the cluster."""

import socket
import time

import pytest

from harness.servers import free_ports
from moorage.bus.rabbit.driver import RabbitDriver
from moorage.config import options

# isort: split
# Imported after the driver, which selects the threading backend.
import oslo_messaging


def made(url: str) -> RabbitDriver:
    conf = options.new({"DEFAULT": {"transport_url": url}})
    parsed = oslo_messaging.TransportURL.parse(conf, url)
    return RabbitDriver(conf, parsed, default_exchange="moorage", allowed_remote_exmods=[])


def with_dead_hosts(url: str, ports: list[int]) -> str:
    """Return the URL of a cluster whose other hosts, at these ports, are away."""
    account, at, live = url.rpartition("@")
    address, slash, vhost = live.partition("/")
    user = account.partition("://")[2]
    return account + at + ",".join([address, *(f"{user}@127.0.0.1:{port}" for port in ports)]) + slash + vhost


@pytest.mark.parametrize("number", [1, 2])
def test_an_idle_connection_whose_host_is_lost_connects_to_another_host(rabbitmq_url: str, number: int) -> None:
    dead = free_ports(number)
    driver = made(with_dead_hosts(rabbitmq_url, dead))
    try:
        with driver.connect(2) as connection:
            lost = connection.connection
        of_kombu = lost.connection
        of_kombu.port = dead[0]  # as if the host that is lost were this one
        of_kombu._connection._transport.sock.shutdown(socket.SHUT_RDWR)
        # The heartbeat thread makes a try every 2.5 s, and may have to try each host once.
        end = time.monotonic() + 2.5 * (number + 3)
        while not of_kombu.connected or of_kombu.port in dead:
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        driver.cleanup()
