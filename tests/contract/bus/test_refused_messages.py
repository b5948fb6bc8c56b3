"""Test that a server refuses messages that it does not serve, on each bus, whatever a client puts into them."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.bus.greeting_service import Cloud, Greet, GreetingService

from moorage import errors

import oslo_messaging
from oslo_messaging.rpc.dispatcher import NoSuchMethod, UnsupportedVersion

Send = Callable[..., Any]
GREET = {"method": "greet", "version": "1.0", "args": {"name": "Ada"}}


def heartbeat_senders() -> list[str]:
    """Return the names of the threads that send heartbeats to callers. The server's other threads come as needed."""
    return [thread.name for thread in threading.enumerate() if "_watchdog" in thread.name]


@pytest.fixture
def during_failures() -> list[list[str]]:
    """The names of these threads during each call of ``fail``."""
    return []


@pytest.fixture
def send(cloud: Cloud, during_failures: list[list[str]]) -> Iterator[Send]:
    """Send any content to a service, and return its answer."""

    def failure() -> BaseException:
        during_failures.append(heartbeat_senders())
        return errors.HostNotFound(name="anywhere")

    cloud.serve(GreetingService(failure=failure))
    target = oslo_messaging.Target(exchange="moorage", topic=cloud.topic)
    driver = cloud.caller.new_transport()._driver
    yield lambda monitored=None, **content: driver.send(
        target, {}, {**GREET, **content}, wait_for_reply=True, timeout=10, call_monitor_timeout=monitored
    )
    driver.cleanup()


def test_a_refused_message_is_answered_and_is_one_line_in_the_log(send: Send, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for version in ("1.99", "2.0", "1", "x", None, 1.0, [1]):
            with pytest.raises(UnsupportedVersion):
                send(version=version)
        for method in ("get_text", "target", None, 5, ["greet"]):
            with pytest.raises(NoSuchMethod):
                send(method=method)
        for arguments in (None, 5, ["Ada"]):
            with pytest.raises(errors.InvalidRequest):
                send(args=arguments)
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("WARNING", None)] * 15
    assert send()["text"] == "Hello Ada"


def test_no_heartbeats_are_sent_to_the_caller_of_a_refused_call(
    cloud: Cloud, send: Send, during_failures: list[list[str]]
) -> None:
    with pytest.raises(errors.HostNotFound):
        send(method="fail", args={}, monitored=4)
    # The in-process bus sends none: its caller's own thread handles the call.
    assert [len(names) for names in during_failures] == [1 if cloud.conf.transport_url.startswith("rabbit") else 0]
    for _ in range(5):
        with pytest.raises(UnsupportedVersion):
            send(monitored=4, version="1.99")
    assert not heartbeat_senders()


def test_a_message_without_the_name_of_a_reply_queue_is_carried_out_and_holds_up_no_other(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.serve(GreetingService(), threads=1)
    target = oslo_messaging.Target(exchange="moorage", topic=cloud.topic)
    driver = cloud.caller.new_transport()._driver
    cloud.client().call(Greet(name="Ada"))  # the topic's queue exists from now on
    unusable: tuple[Any, ...] = (None, "", 5, 1.5, True, ["reply"], {}, "x" * 256, "é" * 128)
    with caplog.at_level(logging.WARNING):
        for reply_queue in unusable:
            message = {**GREET, "_msg_id": "m", "_reply_q": reply_queue, "_timeout": 4}
            driver.send(target, {}, message, wait_for_reply=False)
        # The only thread answers it after the others.
        assert cloud.client().call(Greet(name="Ada")).text == "Hello Ada"
    assert not caplog.records
    driver.cleanup()
