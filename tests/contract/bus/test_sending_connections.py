"""Test connections to RabbitMQ that send: the loss of a host of the cluster, and an alarm of the broker."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor, wait

import psutil
import pytest
from support.processes.broker_alarm import alarm
from support.processes.stopwatch import Stopwatch

from harness.servers import RabbitMQServer, free_ports
from harness.waiting import wait_until
from moorage import errors
from moorage.bus.bus import Bus
from moorage.bus.rabbit.connection import NotSentInTime
from moorage.bus.rabbit.driver import RabbitDriver
from moorage.config import options

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


def send(driver: RabbitDriver, timeout: float) -> None:
    with driver.connect(2) as connection:
        connection.topic_send(exchange_name="moorage", topic="reports", msg={}, timeout=timeout, retry=2)


def connections(rabbitmq: RabbitMQServer) -> int:
    """Return the number of connections that the broker has open."""
    found = [each for each in psutil.net_connections("tcp") if each.laddr and each.laddr.port == rabbitmq.port]
    return sum(each.status in (psutil.CONN_ESTABLISHED, psutil.CONN_CLOSE_WAIT) for each in found)


def test_calls_during_an_alarm_leave_no_further_connections(rabbitmq: RabbitMQServer, rabbitmq_url: str) -> None:
    driver = made(rabbitmq_url)
    try:
        send(driver, 5.0)
        before = connections(rabbitmq)
        with alarm(rabbitmq, "memory"):
            for _ in range(3):
                watch = Stopwatch()
                with pytest.raises(NotSentInTime):
                    send(driver, 3.0)
                assert watch.seconds < 3.0
            assert connections(rabbitmq) <= before
        send(driver, 10.0)
    finally:
        driver.cleanup()


def files(rabbitmq: RabbitMQServer) -> int:
    """Return the number of files that the broker has open, with the connections that were closed only at their end."""
    found = psutil.net_connections("tcp")
    [pid] = {each.pid for each in found if each.status == psutil.CONN_LISTEN and each.laddr.port == rabbitmq.port}
    return int(psutil.Process(pid).num_fds())


def test_checks_during_an_alarm_leave_one_connection_until_it_ends(rabbitmq: RabbitMQServer, rabbitmq_url: str) -> None:
    bus = Bus(options.new({"DEFAULT": {"transport_url": rabbitmq_url}}))
    bus.check_alarms()
    before = files(rabbitmq)
    for _ in range(2):
        with alarm(rabbitmq, "memory"):
            for _ in range(4):
                with pytest.raises(errors.BusUnavailable, match="an alarm of the broker is on"):
                    bus.check_alarms()
            # The broker itself opens a file now and then.
            wait_until(lambda: files(rabbitmq) <= before + 1, lambda: files(rabbitmq))
        bus.check_alarms()
        wait_until(lambda: files(rabbitmq) <= before, lambda: files(rabbitmq))
    bus.close()


def test_a_call_that_an_alarm_blocks_is_sent_when_the_alarm_ends(rabbitmq: RabbitMQServer, rabbitmq_url: str) -> None:
    driver = made(rabbitmq_url)
    try:
        send(driver, 5.0)
        with ThreadPoolExecutor() as threads:
            with alarm(rabbitmq, "memory"):
                sent = threads.submit(send, driver, 30.0)
                assert wait([sent], 1.0).not_done
            sent.result()
    finally:
        driver.cleanup()
