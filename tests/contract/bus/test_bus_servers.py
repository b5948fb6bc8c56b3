"""Test time-outs, servers and contexts on each bus: RabbitMQ in plain text and over TLS, and within one process."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from support.bus.greeting_service import (
    ATTEMPT,
    Cloud,
    Fail,
    GetText,
    Greet,
    Greeting,
    GreetingService,
    GreetTogether,
    Wait,
    WaitTogether,
    WhoAmI,
    Work,
)
from support.moorage.root_logger import root_logger  # noqa: F401 - a fixture
from support.processes.stopwatch import Stopwatch

from harness.waiting import wait_until
from moorage import context, errors, logs
from moorage.bus import bus
from moorage.messages.wire import Message

# --- Time -----------------------------------------------------------------------------------------------------------


def test_a_slow_answer_is_no_reply(cloud: Cloud) -> None:
    service = GreetingService()
    cloud.serve(service)
    # Long enough for the call to begin on a busy machine: a call that arrives too late is refused.
    with pytest.raises(errors.NoReply) as caught:
        cloud.client().call(Wait(), timeout=4.0)
    assert caught.value.data == {"topic": cloud.topic, "method": "wait", "seconds": 4.0}
    assert service.entered.is_set()
    service.may_leave.set()


def test_a_topic_without_a_server_is_no_reply(cloud: Cloud) -> None:
    # The first call connects, so that the time-out below does not include that.
    cloud.serve(GreetingService())
    cloud.client().call(Greet(name="Ada"))
    watch = Stopwatch()
    with pytest.raises(errors.NoReply):
        cloud.caller.client(f"nobody-{uuid4()}").call(GetText(), timeout=2.0)
    assert watch.elapsed > 1.9
    assert watch.seconds < 6.7


def test_a_client_may_have_its_own_timeout(cloud: Cloud) -> None:
    # Connecting is part of the time.
    with pytest.raises(errors.NoReply) as caught:
        cloud.caller.client(cloud.topic, timeout=3.0).call(GetText())
    assert caught.value.data["seconds"] == 3.0


def test_a_call_waits_for_a_server_that_starts_again(cloud: Cloud) -> None:
    cloud.serve(GreetingService()).stop()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(cloud.client().call, Greet(name="Ada"), 10)
        time.sleep(0.3)
        cloud.serve(GreetingService("second"))
        assert answer.result(10).by == "second"


@pytest.mark.parametrize("message", [Greet(name="Ada"), GreetTogether(name="Ada")], ids=["alone", "in a batch"])
def test_a_call_waits_for_the_first_server_of_its_topic(cloud: Cloud, message: Message[Greeting]) -> None:
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(cloud.client().call, message, 10) for _ in range(3)]
        time.sleep(0.5)
        cloud.serve(GreetingService("first"))
        assert {answer.result(10).by for answer in answers} == {"first"}


def test_the_wait_for_the_first_server_of_a_topic_is_part_of_the_timeout_of_a_call(cloud: Cloud) -> None:
    service, watch = GreetingService(), Stopwatch()
    with ThreadPoolExecutor() as pool:
        # The message may wait for four of the ten seconds: long enough for the server to start on a busy machine.
        answer = pool.submit(cloud.client().call, Wait(), 10)
        time.sleep(1.6)
        cloud.serve(service)
        with pytest.raises(errors.NoReply):
            answer.result(30)
        assert watch.seconds < 11.3
        assert service.entered.is_set()
        service.may_leave.set()


def test_a_call_that_no_server_took_in_time_is_never_carried_out(cloud: Cloud) -> None:
    cloud.serve(GreetingService()).stop()
    with pytest.raises(errors.NoReply):
        cloud.client().call(Greet(name="Late"), timeout=3.0)
    time.sleep(0.1)
    service = GreetingService()
    cloud.serve(service)
    cloud.client().call(Greet(name="Ada"))
    assert service.greeted == ["Ada"]


# --- Servers --------------------------------------------------------------------------------------------------------


def test_two_servers_share_the_work(cloud: Cloud) -> None:
    services = [GreetingService("first"), GreetingService("second")]
    for service in services:
        cloud.serve(service, name=service.name)
    client = cloud.client()
    for number in range(20):
        client.call(Greet(name=str(number)))
    assert sorted(len(service.greeted) for service in services) == [10, 10]


def test_a_call_to_a_named_server_reaches_that_server(cloud: Cloud) -> None:
    for name in ("first", "second"):
        cloud.serve(GreetingService(name), name=name)
    for name in ("second", "first", "second"):
        assert cloud.client(name).call(Greet(name="Ada")).by == name
    with pytest.raises(errors.NoReply, match="third"):
        cloud.client("third").call(Greet(name="Ada"), timeout=1)


def test_a_server_works_on_several_calls_at_once(cloud: Cloud) -> None:
    service = GreetingService()
    cloud.serve(service)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(cloud.client().call, Wait())
        assert service.entered.wait(5)
        assert cloud.client().call(Greet(name="Ada")).text == "Hello Ada"
        service.may_leave.set()
        assert waiting.result(5) == "done"


def test_stopping_answers_the_call_in_flight(cloud: Cloud) -> None:
    service = GreetingService()
    server = cloud.serve(service)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(cloud.client().call, Wait())
        assert service.entered.wait(5)
        stopped = pool.submit(server.stop)
        time.sleep(0.2)
        assert not stopped.done()
        service.may_leave.set()
        assert answer.result(10) == "done"
        stopped.result(10)
    server.stop()
    with pytest.raises(errors.NoReply):
        cloud.client().call(Greet(name="Ada"), timeout=1)


def test_a_server_and_its_bus_stop_without_waiting_for_another_message(cloud: Cloud) -> None:
    seconds = []
    for _ in range(4):
        with closing(bus.Bus(cloud.conf)) as own:
            server = own.server(cloud.topic, "first", [GreetingService()])
            server.start()
            own.client(cloud.topic).call(Greet(name="Ada"))
            watch = Stopwatch()
            server.stop()
        seconds.append(watch.seconds)
    # A server that waits for a message does so for half a second at a time, and has just begun to wait.
    assert min(seconds) < 0.25


def test_messages_that_a_stopping_server_has_not_read_are_taken_by_another_server_before_it_has_stopped(
    shared_vhost: str,
) -> None:
    with closing(Cloud(shared_vhost)) as cloud, ThreadPoolExecutor() as threads:
        busy = GreetingService("busy")
        first = cloud.serve(busy, threads=1)
        client = cloud.client()
        held = threads.submit(client.call, Wait())
        assert busy.entered.wait(5)
        # The first message is read and waits for a thread; the others are in the socket or in the queue.
        greeted = [threads.submit(client.call, Greet(name=name)) for name in ("Ada", "Ben", "Cleo")]
        time.sleep(0.5)
        cloud.serve(GreetingService("peer"), name="second")
        stopping = threads.submit(first.stop)
        try:
            wait_until(lambda: sum(each.done() and each.result().by == "peer" for each in greeted) >= 2)
            assert not stopping.done()
        finally:
            busy.may_leave.set()
        assert held.result() == "done"
        assert {each.result().text for each in greeted} == {"Hello Ada", "Hello Ben", "Hello Cleo"}


@pytest.mark.parametrize("message", [Wait(), WaitTogether()], ids=["alone", "in a batch"])
def test_a_call_under_way_on_a_bus_that_is_closed_has_no_reply(cloud: Cloud, message: Message[str]) -> None:
    service = GreetingService()
    cloud.serve(service)
    with closing(bus.Bus(cloud.conf)) as own, ThreadPoolExecutor() as pool:
        answer = pool.submit(own.client(cloud.topic, timeout=5.0).call, message)
        assert service.entered.wait(5)
        own.close()
        with pytest.raises(errors.NoReply):
            answer.result(10)
    service.may_leave.set()


@pytest.mark.parametrize("message", [Greet(name="Ada"), GreetTogether(name="Ada")], ids=["alone", "in a batch"])
@pytest.mark.parametrize("has_called", [True, False], ids=["after a call", "before any"])
def test_a_call_on_a_closed_bus_to_a_broker_is_refused(
    shared_vhost: str, message: Message[Greeting], has_called: bool
) -> None:
    with closing(Cloud(shared_vhost)) as cloud:
        cloud.serve(GreetingService())
        own = cloud.new_bus()
        client = own.client(cloud.topic)
        if has_called:
            client.call(message)
        own.close()
        with pytest.raises(errors.BusUnavailable, match="closed"):
            client.call(message)


# --- Context --------------------------------------------------------------------------------------------------------


def test_a_call_has_the_request_id_of_its_origin_and_the_attempt_id_of_its_message(cloud: Cloud) -> None:
    cloud.serve(GreetingService())
    client = cloud.client()
    assert client.call(WhoAmI()) == {"request_id": None, "attempt_id": None}
    assert client.call(Work(request_id="r-1")) == {"request_id": "r-1", "attempt_id": None}
    with context.bound(request_id="origin", attempt_id="a-1"):
        assert client.call(WhoAmI()) == {"request_id": "origin", "attempt_id": "a-1"}
        seen = client.call(Work(request_id="r-2", attempt_id=ATTEMPT))
    assert seen == {"request_id": "origin", "attempt_id": ATTEMPT}
    assert client.call(WhoAmI()) == {"request_id": None, "attempt_id": None}


@pytest.mark.usefixtures("root_logger")
def test_the_log_lines_of_a_server_have_the_request_id_and_the_attempt_id(cloud: Cloud, tmp_path: Path) -> None:
    file = tmp_path / "log"
    cloud.conf.set_override("log_file", str(file))
    logs.setup(cloud.conf, "greeting-service")
    cloud.serve(GreetingService(failure=lambda: ZeroDivisionError("gone wrong")))
    cloud.client().call(Work(request_id="r-1", attempt_id=ATTEMPT))
    with context.bound(request_id="r-2"), pytest.raises(errors.InternalError):
        cloud.client().call(Fail())
    written = file.read_text()
    assert f"[greeting-service r-1 {ATTEMPT}] working hard" in written
    crash = [line for line in written.splitlines() if "gone wrong" in line]
    assert crash
    assert all("[greeting-service r-2 -]" in line for line in crash)
