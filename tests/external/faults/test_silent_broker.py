"""A broker that goes silent or away, a caller whose queue is gone, a server that stood still: soon all answer again."""

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

import kombu
import pytest

from harness.tcp_proxy import TcpProxy
from moorage import errors
from moorage.bus import bus
from moorage.config import options
from moorage.messages.wire import Message
from moorage.service.process import until_available

LONG = os.environ.get("DRILLS") == "long"
#: The default is 10; two of them without a word end a connection.
HEARTBEAT = 10 if LONG else 1
#: Seconds after which the broker has confirmed a message to its sender that a server has received. A connection lost
#: before that means that the message is sent again.
CONFIRMED = 1.0


class Hello(Message[str], frozen=True, kw_only=True):
    topic = "porch"
    method = "hello"


class Linger(Message[str], frozen=True, kw_only=True):
    topic = "porch"
    method = "linger"


class Porch:
    """Answers at once, or when the test lets it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.may_answer = threading.Event()

    @bus.serves(Hello)
    def hello(self, message: Hello) -> str:
        return "hello"

    @bus.serves(Linger)
    def linger(self, message: Linger) -> str:
        self.entered.set()
        assert self.may_answer.wait(30)
        return "at last"


class Street:
    """A caller and a server on one broker, each behind a proxy of its own."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self.parts = urlsplit(url)
        self.conf = options.new(
            {"DEFAULT": {"transport_url": url}, "oslo_messaging_rabbit": {"rabbit_interval_max": 1, **settings}}
        )
        self._closing = ExitStack()
        self.server_proxy, self.caller_proxy = self._proxy(), self._proxy()
        self.porch = Porch()
        self.server = self._bus(self.server_proxy).server("porch", "one", [self.porch])
        self.caller = self._bus(self.caller_proxy)
        self.server.start()
        self.client = self.caller.client("porch")

    def close(self) -> None:
        self.porch.may_answer.set()
        self._closing.close()

    def _proxy(self) -> TcpProxy:
        return self._closing.enter_context(TcpProxy(self.parts.hostname or "", self.parts.port or 0))

    def _bus(self, proxy: TcpProxy) -> bus.Bus:
        made = bus.Bus(self.conf, self.url.replace(f":{self.parts.port}/", f":{proxy.port}/"))
        self._closing.callback(made.close)
        return made

    def delete_reply_queue(self) -> None:
        """Let the broker forget the caller's queue for replies, as a restart does."""
        name = self.caller._transport._driver._reply_q
        with kombu.Connection(self.url.replace("rabbit://", "amqp://")) as connection:
            connection.default_channel.queue_delete(name)

    def seconds_until_answered(self) -> float:
        begun = time.monotonic()
        while time.monotonic() - begun < 120:
            try:
                if self.client.call(Hello(), timeout=1) == "hello":
                    return time.monotonic() - begun
            except errors.Unavailable:
                time.sleep(0.05)
        raise AssertionError("nobody has answered for 120 s")


@pytest.fixture
def street(rabbitmq_url: str) -> Iterator[Callable[..., Street]]:
    with ExitStack() as closing:

        def build(**settings: Any) -> Street:
            built = Street(rabbitmq_url, **settings)
            closing.callback(built.close)
            assert built.client.call(Hello(), timeout=20) == "hello"
            return built

        yield build


@pytest.mark.parametrize("side", ["server_proxy", "caller_proxy"])
def test_connections_that_went_silent_are_noticed_within_three_heartbeats(
    street: Callable[..., Street], side: str, record_property: Callable[[str, object], None]
) -> None:
    now = street(heartbeat_timeout_threshold=HEARTBEAT)
    proxy: TcpProxy = getattr(now, side)
    proxy.go_silent()
    took = now.seconds_until_answered()
    record_property("measured", f"{side} silent, heartbeat {HEARTBEAT} s: answered after {took:.1f} s")
    # Reconnecting is in it, and a machine that is busy with something else.
    assert took < 3 * HEARTBEAT + (0 if LONG else 5)


def test_the_default_heartbeat_notices_a_silent_broker_within_thirty_seconds() -> None:
    conf = options.new({"DEFAULT": {"transport_url": "rabbit://nobody/"}})
    assert 3 * conf.oslo_messaging_rabbit.heartbeat_timeout_threshold <= 30


def test_a_caller_whose_queue_was_missing_is_answered_again_as_soon_as_it_is_back(
    street: Callable[..., Street],
) -> None:
    now = street(kombu_missing_consumer_retry_timeout=0)
    with ThreadPoolExecutor() as pool:
        given_up = pool.submit(now.client.call, Linger(), 5)
        assert now.porch.entered.wait(10)
        time.sleep(CONFIRMED)
        now.caller_proxy.refuse()
        now.delete_reply_queue()
        now.porch.may_answer.set()
        with pytest.raises(errors.NoReply):
            given_up.result(30)
    now.caller_proxy.resume()
    assert now.seconds_until_answered() < 10


def test_an_answer_waits_for_its_callers_queue_from_when_the_broker_is_back_and_not_from_when_it_went(
    street: Callable[..., Street],
) -> None:
    patience = 4
    now = street(kombu_missing_consumer_retry_timeout=patience)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(now.client.call, Linger(), 40)
        assert now.porch.entered.wait(10)
        time.sleep(CONFIRMED)
        for proxy in (now.server_proxy, now.caller_proxy):
            proxy.refuse()
        now.delete_reply_queue()
        now.porch.may_answer.set()
        time.sleep(patience + 0.5)
        now.server_proxy.resume()
        time.sleep(0.5)
        now.caller_proxy.resume()
        assert answer.result(30) == "at last"


def test_a_server_that_cannot_send_its_answer_stops_within_ten_seconds(street: Callable[..., Street]) -> None:
    now = street()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(now.client.call, Linger(), 3)
        assert now.porch.entered.wait(10)
        now.server_proxy.refuse()
        now.porch.may_answer.set()
        begun = time.monotonic()
        now.server.stop()
        assert time.monotonic() - begun < 10
        with pytest.raises(errors.NoReply):
            answer.result(10)


STOOD_STILL = """
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

bus.Bus(options.new({{"DEFAULT": {{"transport_url": {url!r}}}}})).server("porch", "still", [Writing()]).start()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_server_that_stood_still_carries_out_nothing_that_came_meanwhile(rabbitmq_url: str, tmp_path: Path) -> None:
    file = tmp_path / "written"
    program = STOOD_STILL.format(folder=str(Path(__file__).parent), file=str(file), url=rabbitmq_url)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    caller = bus.Bus(options.new({"DEFAULT": {"transport_url": rabbitmq_url}}))
    client = caller.client("porch")
    server = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        client.call(Hello(), timeout=20)
        server.send_signal(signal.SIGSTOP)
        # On a busy machine some of its threads run on for a moment, and it could answer.
        os.waitpid(server.pid, os.WUNTRACED)
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


def test_while_the_first_of_several_brokers_is_silent_a_server_is_ready_and_one_that_starts_is_not_held_up(
    rabbitmq_url: str,
) -> None:
    account, _, rest = rabbitmq_url.partition("://")[2].partition("@")
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        several = f"rabbit://{account}@127.0.0.1:{silent.getsockname()[1]},{account}@{rest}"
        here = bus.Bus(options.new({"DEFAULT": {"transport_url": several}}))
        server = here.server("porch", "one", [Porch()])
        try:
            until_available(server.start, "the brokers")
            server.check()  # whoever looks for the first time waits for the silent one
            begun = time.monotonic()
            server.check()
            here.probe()
            # Readiness waits for two seconds.
            assert time.monotonic() - begun < 1.5
        finally:
            here.close()


def test_brokers_are_all_asked_however_silent_they_were(rabbitmq_url: str) -> None:
    account, _, rest = rabbitmq_url.partition("://")[2].partition("@")
    parts = urlsplit(rabbitmq_url)
    with TcpProxy("127.0.0.1", parts.port or 0) as first, TcpProxy("127.0.0.1", parts.port or 0) as second:
        addresses = ",".join(f"{account}@127.0.0.1:{proxy.port}" for proxy in (first, second))
        here = bus.Bus(options.new({"DEFAULT": {"transport_url": f"rabbit://{addresses}/{rest.partition('/')[2]}"}}))
        for away, other in ((first, second), (second, first)):
            other.resume()
            away.refuse()
            here.probe()
            assert here.servers_of("porch") == 0
        first.refuse()
        with pytest.raises(errors.BusUnavailable):
            here.probe()
        here.close()
