"""Test the dispatch of calls whose method, version and arguments are of any type."""

import logging
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.bus.greeting_service import Greet, GreetingService

from moorage import errors
from moorage.bus.handlers import Endpoint
from moorage.bus.rpc_server import CallDispatcher

import oslo_messaging
from oslo_messaging.rpc.dispatcher import NoSuchMethod, UnsupportedVersion

GREET = {"method": "greet", "version": "1.0", "args": {"name": "Ada"}}


@dataclass
class Incoming:
    """An incoming message, as a driver gives it to the library."""

    message: dict[str, Any]
    client_timeout: Any = None
    ctxt: dict[str, Any] = field(default_factory=dict)

    def heartbeat(self) -> None:
        raise AssertionError("no call takes that long")


@pytest.fixture
def dispatcher() -> CallDispatcher:
    return CallDispatcher([Endpoint(Greet, GreetingService().greet, "greeting")])


def refusal(dispatcher: CallDispatcher, incoming: Incoming) -> BaseException:
    with pytest.raises(oslo_messaging.ExpectedException) as caught:
        dispatcher.dispatch(incoming)
    fault: BaseException = caught.value.exc_info[1]
    assert len(str(fault)) < 500
    return fault


@pytest.mark.parametrize(
    "version", ["9.9", "1.99", "2.0", "1", "1.x", "", " 1.0", "1.-1", None, 1.0, [1], {"1": 0}, "9" * 5000]
)
def test_a_version_that_is_too_new_or_none_is_refused(dispatcher: CallDispatcher, version: object) -> None:
    assert isinstance(refusal(dispatcher, Incoming({**GREET, "version": version})), UnsupportedVersion)


@pytest.mark.parametrize("namespace", ["other", 5, ["x"], {}])
def test_a_name_space_that_is_not_served_is_refused(dispatcher: CallDispatcher, namespace: object) -> None:
    assert isinstance(refusal(dispatcher, Incoming({**GREET, "namespace": namespace})), UnsupportedVersion)


@pytest.mark.parametrize("method", [None, 5, ["greet"], {}, "", "greet ", "target", "_answer", "__init__", "x" * 5000])
def test_a_method_that_is_not_served_is_refused(dispatcher: CallDispatcher, method: object) -> None:
    assert isinstance(refusal(dispatcher, Incoming({**GREET, "method": method})), NoSuchMethod)


@pytest.mark.parametrize("arguments", [None, 5, "name", ["Ada"], True])
def test_arguments_that_are_no_object_are_an_invalid_request(dispatcher: CallDispatcher, arguments: object) -> None:
    fault = refusal(dispatcher, Incoming({**GREET, "args": arguments}))
    assert isinstance(fault, errors.InvalidRequest)
    assert fault.data["path"] == "$"


def test_a_refusal_is_one_line_in_the_log(dispatcher: CallDispatcher, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        refusal(dispatcher, Incoming({**GREET, "version": "1.99"}))
    [record] = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert "1.99" in record.getMessage()
    assert "greet" in record.getMessage()


@pytest.mark.parametrize("seconds", [None, 0, 4, -1, 0.5, 10**40, float("inf"), "4", "x", [4], {"a": 1}, True])
def test_a_monitored_call_leaves_no_thread(dispatcher: CallDispatcher, seconds: object) -> None:
    before = threading.active_count()
    assert dispatcher.dispatch(Incoming(GREET, seconds))["text"] == "Hello Ada"
    refusal(dispatcher, Incoming({**GREET, "version": "1.99"}, seconds))
    refusal(dispatcher, Incoming({**GREET, "method": "get_text"}, seconds))
    assert threading.active_count() == before
