"""Test that a server refuses messages that it does not serve, on each bus, whatever a client puts into them."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging
import pytest
from oslo_messaging.rpc.dispatcher import NoSuchMethod, UnsupportedVersion
from support.bus.hall import Cloud, Hall

from moorage import errors

Send = Callable[..., Any]
GREET = {"method": "greet", "version": "1.0", "args": {"name": "Ada"}}


@pytest.fixture
def send(cloud: Cloud) -> Iterator[Send]:
    """Send any content to a hall, and return its answer."""
    cloud.serve(Hall())
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
        for method in ("sing", "target", None, 5, ["greet"]):
            with pytest.raises(NoSuchMethod):
                send(method=method)
        for arguments in (None, 5, ["Ada"]):
            with pytest.raises(errors.InvalidRequest):
                send(args=arguments)
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("WARNING", None)] * 15
    assert send()["text"] == "Hello Ada"


def test_no_heartbeats_are_sent_to_the_caller_of_a_refused_call(send: Send) -> None:
    assert send(monitored=4)["text"] == "Hello Ada"
    before = threading.active_count()
    for _ in range(5):
        with pytest.raises(UnsupportedVersion):
            send(monitored=4, version="1.99")
    assert threading.active_count() <= before
