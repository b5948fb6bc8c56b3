"""Calls are answered soon after a broker was silent or unreachable, a reply queue was lost, or a server was paused."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kombu.connection import Connection
from support.processes.stopwatch import Stopwatch

from harness.processes import pause
from harness.tcp_proxy import TcpProxy
from moorage import errors
from moorage.bus import bus
from moorage.config import options
from moorage.messages.wire import Message
from moorage.service.process import until_available

LONG = os.environ.get("DRILLS") == "long"
#: The default is 10; two missed heartbeats end a connection.
HEARTBEAT = 10 if LONG else 1
#: Seconds after which the broker has confirmed to the sender a message that a server has received. If the connection is
#: lost earlier, the message is sent again.
CONFIRMED = 1.0


class Hello(Message[str], frozen=True, kw_only=True):
    topic = "greetings"
    method = "hello"


class AnswerLater(Message[str], frozen=True, kw_only=True):
    topic = "greetings"
    method = "answer_later"


class Endpoint:
    """Answers at once, or when the test allows it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.may_answer = threading.Event()

    @bus.serves(Hello)
    def hello(self, message: Hello) -> str:
        return "hello"

    @bus.serves(AnswerLater)
    def answer_later(self, message: AnswerLater) -> str:
        self.entered.set()
        assert self.may_answer.wait(30)
        return "at last"


class Pair:
    """A caller and a server on one broker, each behind its own proxy."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self.parts = urlsplit(url)
        self.conf = options.new(
            {"DEFAULT": {"transport_url": url}, "oslo_messaging_rabbit": {"rabbit_interval_max": 1, **settings}}
        )
        self._closing = ExitStack()
        self.server_proxy, self.caller_proxy = self._proxy(), self._proxy()
        self.endpoint = Endpoint()
        self.server = self._bus(self.server_proxy).server("greetings", "one", [self.endpoint])
        self.caller = self._bus(self.caller_proxy)
        self.server.start()
        self.client = self.caller.client("greetings")

    def close(self) -> None:
        self.endpoint.may_answer.set()
        self._closing.close()

    def _proxy(self) -> TcpProxy:
        return self._closing.enter_context(TcpProxy(self.parts.hostname or "", self.parts.port or 0))

    def _bus(self, proxy: TcpProxy) -> bus.Bus:
        made = bus.Bus(self.conf, self.url.replace(f":{self.parts.port}/", f":{proxy.port}/"))
        self._closing.callback(made.close)
        return made

    def delete_reply_queue(self) -> None:
        """Delete the caller's reply queue from the broker, as a restart does."""
        name = self.caller._transport._driver._reply_q
        url = self.url.replace("rabbit://", "amqp://")
        with Connection(url) as connection:  # type: ignore[no-untyped-call]  # kombu has no types
            connection.default_channel.queue_delete(name)

    def seconds_until_answered(self) -> float:
        watch = Stopwatch()
        while watch.elapsed < 120:
            try:
                if self.client.call(Hello(), timeout=1) == "hello":
                    return watch.seconds
            except errors.Unavailable:
                time.sleep(0.05)
        raise AssertionError("no answer for 120 s")


@pytest.fixture
def connect(rabbitmq_url: str) -> Iterator[Callable[..., Pair]]:
    """A function that returns a connected pair, with these options of the driver."""
    with ExitStack() as closing:

        def connected(**settings: Any) -> Pair:
            pair = Pair(rabbitmq_url, **settings)
            closing.callback(pair.close)
            assert pair.client.call(Hello(), timeout=20) == "hello"
            return pair

        yield connected


@pytest.mark.parametrize("side", ["server_proxy", "caller_proxy"])
def test_a_silent_connection_is_noticed_within_three_heartbeats(
    connect: Callable[..., Pair], side: str, record_property: Callable[[str, object], None]
) -> None:
    pair = connect(heartbeat_timeout_threshold=HEARTBEAT)
    proxy: TcpProxy = getattr(pair, side)
    proxy.go_silent()
    took = pair.seconds_until_answered()
    record_property("measured", f"{side} silent, heartbeat {HEARTBEAT} s: answered after {took:.1f} s")
    # The margin is for reconnecting, and for a busy machine.
    assert took < 3 * HEARTBEAT + (0 if LONG else 5)


def test_the_default_heartbeat_notices_a_silent_broker_within_thirty_seconds() -> None:
    conf = options.new({"DEFAULT": {"transport_url": "rabbit://nobody/"}})
    assert 3 * conf.oslo_messaging_rabbit.heartbeat_timeout_threshold <= 30


def test_a_caller_whose_reply_queue_was_missing_is_answered_again_as_soon_as_it_is_connected(
    connect: Callable[..., Pair],
) -> None:
    pair = connect(kombu_missing_consumer_retry_timeout=0)
    with ThreadPoolExecutor() as pool:
        unanswered = pool.submit(pair.client.call, AnswerLater(), 3)
        assert pair.endpoint.entered.wait(10)
        time.sleep(CONFIRMED)
        pair.caller_proxy.refuse()
        pair.delete_reply_queue()
        pair.endpoint.may_answer.set()
        with pytest.raises(errors.NoReply):
            unanswered.result(30)
    pair.caller_proxy.resume()
    assert pair.seconds_until_answered() < 10


def test_an_answer_waits_for_the_reply_queue_from_the_time_when_the_broker_is_reachable_again(
    connect: Callable[..., Pair],
) -> None:
    patience = 4
    pair = connect(kombu_missing_consumer_retry_timeout=patience)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(pair.client.call, AnswerLater(), 40)
        assert pair.endpoint.entered.wait(10)
        time.sleep(CONFIRMED)
        for proxy in (pair.server_proxy, pair.caller_proxy):
            proxy.refuse()
        pair.delete_reply_queue()
        pair.endpoint.may_answer.set()
        time.sleep(patience + 0.5)
        pair.server_proxy.resume()
        time.sleep(0.5)
        pair.caller_proxy.resume()
        assert answer.result(30) == "at last"


def test_a_server_that_cannot_send_its_answer_stops_within_ten_seconds(connect: Callable[..., Pair]) -> None:
    pair = connect()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(pair.client.call, AnswerLater(), 3)
        assert pair.endpoint.entered.wait(10)
        pair.server_proxy.refuse()
        pair.endpoint.may_answer.set()
        watch = Stopwatch()
        pair.server.stop()
        assert watch.seconds < 10
        with pytest.raises(errors.NoReply):
            answer.result(10)


PAUSED_SERVER = """
import sys
sys.path[:0] = [{folder!r}]
from pathlib import Path
from moorage.bus import bus
from moorage.config import options
from test_silent_broker import Hello

class Writing:
    @bus.serves(Hello)
    def hello(self, message):
        with Path({file!r}).open("a") as file:
            file.write("hello ")
        return "hello"

bus.Bus(options.new({{"DEFAULT": {{"transport_url": {url!r}}}}})).server("greetings", "paused", [Writing()]).start()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_server_that_was_paused_carries_out_no_message_whose_caller_has_given_up(
    rabbitmq_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "written"
    program = PAUSED_SERVER.format(folder=str(Path(__file__).parent), file=str(file), url=rabbitmq_url)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    caller = bus.Bus(options.new({"DEFAULT": {"transport_url": rabbitmq_url}}))
    client = caller.client("greetings")
    server = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        client.call(Hello(), timeout=20)
        pause(server.pid)
        for _ in range(3):
            with pytest.raises(errors.NoReply):
                client.call(Hello(), timeout=1)
        server.send_signal(signal.SIGCONT)
        client.call(Hello(), timeout=20)
        assert file.read_text().split() == ["hello", "hello"]
    finally:
        server.kill()
        server.communicate()
        caller.close()


def test_if_the_first_of_several_brokers_is_silent_a_server_starts_and_is_ready(
    rabbitmq_url: str,
) -> None:
    account, _, rest = rabbitmq_url.partition("://")[2].partition("@")
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        several = f"rabbit://{account}@127.0.0.1:{silent.getsockname()[1]},{account}@{rest}"
        here = bus.Bus(options.new({"DEFAULT": {"transport_url": several}}))
        server = here.server("greetings", "one", [Endpoint()])
        try:
            until_available(server.start, "the brokers")
            server.check()  # the first check waits for the silent broker
            watch = Stopwatch()
            server.check()
            here.probe()
            # A readiness check waits for two seconds.
            assert watch.seconds < 1.5
        finally:
            here.close()


def test_a_probe_tries_all_brokers_even_those_that_were_unreachable_before(rabbitmq_url: str) -> None:
    account, _, rest = rabbitmq_url.partition("://")[2].partition("@")
    parts = urlsplit(rabbitmq_url)
    with TcpProxy("127.0.0.1", parts.port or 0) as first, TcpProxy("127.0.0.1", parts.port or 0) as second:
        addresses = ",".join(f"{account}@127.0.0.1:{proxy.port}" for proxy in (first, second))
        here = bus.Bus(options.new({"DEFAULT": {"transport_url": f"rabbit://{addresses}/{rest.partition('/')[2]}"}}))
        for unreachable, other in ((first, second), (second, first)):
            other.resume()
            unreachable.refuse()
            here.probe()
            assert here.servers_of("greetings") == 0
        first.refuse()
        with pytest.raises(errors.BusUnavailable):
            here.probe()
        here.close()


def test_a_server_leaves_a_silent_broker_for_another_one_of_three(rabbitmq_url: str) -> None:
    account, _, rest = rabbitmq_url.partition("://")[2].partition("@")
    with ExitStack() as closing:
        port = urlsplit(rabbitmq_url).port or 0
        proxies = [closing.enter_context(TcpProxy("127.0.0.1", port)) for _ in range(3)]
        addresses = ",".join(f"{account}@127.0.0.1:{proxy.port}" for proxy in proxies)
        conf = options.new(
            {
                "DEFAULT": {"transport_url": f"rabbit://{addresses}/{rest.partition('/')[2]}"},
                "oslo_messaging_rabbit": {"rabbit_interval_max": 1, "heartbeat_timeout_threshold": HEARTBEAT},
            }
        )
        here = bus.Bus(conf)
        closing.callback(here.close)
        server = here.server("greetings", "one", [Endpoint()])
        server.start()
        elsewhere = bus.Bus(options.new({"DEFAULT": {"transport_url": rabbitmq_url}}))
        closing.callback(elsewhere.close)
        client = elsewhere.client("greetings")
        assert client.call(Hello(), timeout=20) == "hello"
        listener = server._server.listener._poll_style_listener
        [its] = [proxy for proxy in proxies if proxy.port == listener.conn.connection.connection.port]

        its.go_silent(new_too=True)

        watch = Stopwatch()
        while True:
            try:
                client.call(Hello(), timeout=1)
                break
            except errors.Unavailable:
                # One try to connect to a silent broker takes up to five seconds.
                assert watch.elapsed < 3 * HEARTBEAT + 20, "the server does not leave the silent broker"
