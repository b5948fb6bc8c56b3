"""Test the library under each bus, and brokers that are away."""

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable

import pytest
from oslo_config import cfg
from support.bus.greeting_service import Cloud, GetText, Greet, Greeting, GreetingService
from support.processes.stopwatch import Stopwatch

from harness.servers import RabbitMQServer
from moorage import errors
from moorage.bus import bus

# --- The bus library ------------------------------------------------------------------------------------------------


def test_nothing_is_patched_and_servers_run_on_threads(cloud: Cloud) -> None:
    server = cloud.serve(GreetingService())
    patcher = sys.modules.get("eventlet.patcher")
    assert patcher is None or patcher.already_patched == {}
    assert server._server.executor_type == "threading"
    assert threading.Thread.__module__ == "threading"


def test_a_private_configuration_has_all_options_that_the_library_registers_globally(cloud: Cloud) -> None:
    cloud.serve(GreetingService())
    cloud.client().call(Greet(name="Ada"))
    for group, registered in cfg.CONF._groups.items():
        if group.startswith("oslo_messaging"):
            assert set(registered._opts) <= set(cloud.conf._groups[group]._opts)
    assert set(cfg.CONF._opts) <= set(cloud.conf._opts)
    assert cloud.conf.control_exchange == "moorage"


def test_buses_of_different_names_in_one_process_are_separate() -> None:
    here, there = Cloud("inproc://here/"), Cloud("inproc://there/")
    there.topic = here.topic
    here.serve(GreetingService())
    with pytest.raises(errors.NoReply):
        there.client().call(Greet(name="Ada"), timeout=0.2)
    here.close()
    there.close()


def test_an_unknown_driver_is_an_error_of_the_configuration() -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        Cloud("carrierpigeon://me:secret@roof/")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["fake:///", "kombu+memory://", "kafka://me:secret@one/", "memory://", "amqp://one/"])
def test_a_transport_other_than_rabbitmq_and_the_process_itself_is_refused_with_those_that_exist(url: str) -> None:
    with pytest.raises(
        errors.ConfigurationError, match=r"transport_url .* begins with rabbit:// .* inproc://"
    ) as caught:
        Cloud(url)
    assert "secret" not in str(caught.value)


# --- A broker that is away ------------------------------------------------------------------------------------------

NOBODY = "rabbit://me:secret@127.0.0.1:1/"


def test_without_a_broker_each_use_fails_soon_and_hides_the_password() -> None:
    cloud = Cloud(NOBODY)
    attempts: list[Callable[[], object]] = [
        lambda: cloud.serve(GreetingService()),
        lambda: cloud.client().call(GetText()),
        lambda: cloud.client().cast(GetText()),
        cloud.caller.probe,
    ]
    for attempt in attempts:
        watch = Stopwatch()
        with pytest.raises(errors.BusUnavailable) as caught:
            attempt()
        assert watch.seconds < 8
        assert "secret" not in str(caught.value)
        assert "127.0.0.1" in str(caught.value)
    cloud.close()


def test_a_bus_in_this_process_is_always_available() -> None:
    cloud = Cloud("inproc://anywhere/")
    cloud.caller.probe()
    cloud.close()


@pytest.mark.servers
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of a connection that the library drops
def test_clients_and_servers_resume_after_a_crash_of_the_broker(rabbitmq: RabbitMQServer) -> None:
    logging.disable()  # log records of the failures would keep sockets, of which a later test would be warned
    try:
        with RabbitMQServer() as broker:  # other tests use the one of the session
            _crash(broker)
    finally:
        logging.disable(logging.NOTSET)
        gc.collect()


def _crash(broker: RabbitMQServer) -> None:
    cloud = Cloud(broker.url)
    cloud.caller.probe()
    server = cloud.serve(GreetingService())
    client = cloud.client()
    client.call(Greet(name="Ada"))
    broker.kill()
    watch = Stopwatch()
    with pytest.raises((errors.BusUnavailable, errors.NoReply)):
        client.call(Greet(name="Ada"), timeout=5)
    with pytest.raises(errors.BusUnavailable):
        client.cast(Greet(name="Ada"))
    assert watch.seconds < 30
    broker.start()
    assert _call_until_answered(client).text == "Hello Ada"
    broker.kill()
    server.stop()
    cloud.close()


def _call_until_answered(client: bus.Client) -> Greeting:
    for _ in range(20):
        try:
            return client.call(Greet(name="Ada"), timeout=1)
        except errors.Unavailable:
            time.sleep(0.2)
    raise AssertionError("the bus has not resumed")


def test_only_the_servers_of_a_topic_answer_a_ping(cloud: Cloud) -> None:
    with pytest.raises(errors.NoReply):
        cloud.client().ping(timeout=3)
    cloud.serve(GreetingService())
    cloud.client().ping(timeout=10)
    cloud.client(server="first").ping(timeout=10)
    with pytest.raises(errors.NoReply):
        cloud.client(server="second").ping(timeout=1)
