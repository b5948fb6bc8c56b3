"""One suite for both buses: what holds on RabbitMQ holds in one process, and the other way round."""

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from msgspec import field
from oslo_config import cfg

from harness.cloud import wait_until
from harness.servers import RabbitMQServer
from moorage import context, errors, logs
from moorage.bus import bus
from moorage.bus.message_size import MAX_MESSAGE
from moorage.config import options
from moorage.messages.wire import Message, Mutation
from moorage.model import Name, Uuid, Value

LOG = logging.getLogger("moorage.test_bus")
ATTEMPT = "11111111-2222-3333-4444-555555555555"


class Greeting(Value, frozen=True, kw_only=True):
    text: str
    by: str = "nobody"


class Greet(Message[Greeting], frozen=True, kw_only=True):
    topic = "hall"
    method = "greet"
    since: ClassVar = {"politely": "1.2"}
    name: Name
    titles: dict[str, int] = field(default_factory=dict)
    politely: bool = False


class GreetTogether(Greet, frozen=True, kw_only=True):
    """A greeting that may travel together with others."""

    may_be_batched = True


class GreetKnown(Message[Greeting], frozen=True, kw_only=True):
    """A greeting that names how often the guest has been greeted before."""

    topic = "hall"
    method = "greet"
    since: ClassVar = {"politely": "1.2", "before": "1.6"}
    guards: ClassVar = frozenset({"before"})
    name: Name
    politely: bool = False
    before: int | None = None


class OldGreet(Message[Greeting], frozen=True, kw_only=True):
    """The greeting as an older server knows it: without the field `politely`."""

    topic = "hall"
    method = "greet"
    name: Name
    titles: dict[str, int] = field(default_factory=dict)


class OldGreeting(Value, frozen=True, kw_only=True):
    text: str


class AskOldGreeting(Message[OldGreeting], frozen=True, kw_only=True):
    """The greeting as an older client knows it: its answer has no field `by`."""

    topic = "hall"
    method = "greet"
    name: Name


class Junk(Message[Any], frozen=True, kw_only=True):
    """A message with arbitrary contents, from a client that is not one of ours."""

    topic = "hall"
    method = "greet"
    name: Any = None
    titles: Any = None
    nonsense: Any = None


class Sing(Message[str], frozen=True, kw_only=True):
    topic = "hall"
    method = "sing"
    words: str = ""


class Fail(Message[str], frozen=True, kw_only=True):
    topic = "hall"
    method = "fail"
    how: str = ""


class Work(Mutation[dict[str, str | None]], frozen=True, kw_only=True):
    topic = "hall"
    method = "work"
    attempt_id: Uuid | None = None


class WhoAmI(Message[dict[str, str | None]], frozen=True, kw_only=True):
    topic = "hall"
    method = "who_am_i"


class Wait(Message[str], frozen=True, kw_only=True):
    topic = "hall"
    method = "wait"


class WaitTogether(Wait, frozen=True, kw_only=True):
    """A wait that may travel together with others."""

    may_be_batched = True


class MisplacedKey(errors.NotFound):
    """A plugin's own error, which no peer has."""

    code = "elsewhere.key"
    drawer: int


class Hall:
    """A service that does as it is told and remembers what it was told."""

    def __init__(self, name: str = "hall", failure: Callable[[], BaseException] | None = None) -> None:
        self.name = name
        self.failure = failure
        self.greeted: list[str] = []
        self.entered = threading.Event()
        self.may_leave = threading.Event()

    @property
    def never_asked(self) -> str:
        raise AssertionError("looking for handlers must not run properties")

    @bus.serves(Greet)
    def greet(self, message: Greet) -> Greeting:
        message.titles["seen"] = 1
        self.greeted.append(message.name)
        return Greeting(text=f"{'Good day' if message.politely else 'Hello'} {message.name}", by=self.name)

    @bus.serves(Fail)
    def fail(self, message: Fail) -> str:
        assert self.failure is not None
        raise self.failure()

    @bus.serves(Work)
    def work(self, message: Work) -> dict[str, str | None]:
        LOG.warning("working hard")
        return {"request_id": context.current().request_id, "attempt_id": context.current().attempt_id}

    @bus.serves(WhoAmI)
    def who_am_i(self, message: WhoAmI) -> dict[str, str | None]:
        return {"request_id": context.current().request_id, "attempt_id": context.current().attempt_id}

    @bus.serves(Wait)
    def wait(self, message: Wait) -> str:
        self.entered.set()
        self.may_leave.wait(20)
        return "done"


class OldHall:
    @bus.serves(OldGreet)
    def greet(self, message: OldGreet) -> Greeting:
        return Greeting(text=f"Hello {message.name}")


class Choir:
    """A service with an answer of a given size."""

    def __init__(self, text: str) -> None:
        self.text = text

    @bus.serves(Sing)
    def sing(self, message: Sing) -> str:
        return self.text


class Cloud:
    """A broker, and all that a test connects to it."""

    def __init__(self, url: str) -> None:
        self.conf = options.new({"DEFAULT": {"transport_url": url}, "rpc": {"call_timeout": 10}})
        self.buses: list[bus.Bus] = []
        self.caller = self.new_bus()
        self.topic = f"hall-{uuid4()}"

    def new_bus(self) -> bus.Bus:
        self.buses.append(bus.Bus(self.conf))
        return self.buses[-1]

    def serve(self, *services: object, name: str = "first", threads: int = 8) -> bus.BusServer:
        server = self.new_bus().server(self.topic, name, services, threads)
        server.start()
        return server

    def client(self, server: str | None = None) -> bus.Client:
        return self.caller.client(self.topic, server)

    def close(self) -> None:
        for one in self.buses:
            one.close()


@pytest.fixture
def cloud(bus_url: str) -> Iterator[Cloud]:
    built = Cloud(bus_url)
    yield built
    built.close()


@pytest.fixture
def root_logger() -> Iterator[None]:
    """Put the process's log back as it was: setting it up is for good."""
    root, hook = logging.getLogger(), sys.excepthook
    handlers, level = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.excepthook = hook


# --- Messages and answers -------------------------------------------------------------------------------------------


def test_a_call_is_answered_with_a_value(cloud: Cloud) -> None:
    cloud.serve(Hall())
    assert cloud.client().call(Greet(name="Ada")) == Greeting(text="Hello Ada", by="hall")


def test_a_cast_arrives(cloud: Cloud) -> None:
    hall = Hall()
    cloud.serve(hall)
    cloud.client().cast(Wait())
    assert hall.entered.wait(5)
    hall.may_leave.set()


def test_several_services_share_one_server(cloud: Cloud) -> None:
    class Choir:
        @bus.serves(Sing)
        def sing(self, message: Sing) -> str:
            return "la"

    cloud.serve(Hall(), Choir())
    assert cloud.client().call(Sing()) == "la"
    assert cloud.client().call(Greet(name="Ada")).text == "Hello Ada"


def test_one_method_cannot_be_served_twice(cloud: Cloud) -> None:
    with pytest.raises(TypeError, match="greet"):
        cloud.caller.server(cloud.topic, "first", [Hall(), OldHall()])


def test_arguments_are_copied(cloud: Cloud) -> None:
    cloud.serve(Hall())
    titles = {"countess": 1}
    cloud.client().call(Greet(name="Ada", titles=titles))
    assert titles == {"countess": 1}


def test_an_unknown_field_of_a_request_is_refused(cloud: Cloud) -> None:
    cloud.serve(Hall())
    with pytest.raises(errors.InvalidRequest, match="nonsense") as caught:
        cloud.client().call(Junk(name="Ada", nonsense=1))
    assert caught.value.data["path"] == "$"


def test_an_unknown_field_of_an_answer_is_ignored(cloud: Cloud) -> None:
    cloud.serve(Hall())
    assert cloud.client().call(AskOldGreeting(name="Ada")) == OldGreeting(text="Hello Ada")


def test_a_malformed_answer_is_the_servers_fault(cloud: Cloud) -> None:
    class WrongAnswer(Message[int], frozen=True, kw_only=True):
        topic = "hall"
        method = "greet"
        name: str

    cloud.serve(Hall())
    with pytest.raises(errors.InternalError):
        cloud.client().call(WrongAnswer(name="Ada"))


def test_an_answer_of_the_largest_size_arrives(cloud: Cloud) -> None:
    cloud.serve(Choir("x" * (MAX_MESSAGE - 100)))
    assert len(cloud.client().call(Sing())) == MAX_MESSAGE - 100


# A quotation mark takes two bytes on the bus and four in its envelope, a letter beyond ASCII seven.
@pytest.mark.parametrize("text", ["x" * MAX_MESSAGE, '"' * (MAX_MESSAGE // 4), "é" * (MAX_MESSAGE // 7 + 1)], ids=len)
def test_an_answer_that_is_too_large_for_a_message_is_a_typed_error(cloud: Cloud, text: str) -> None:
    cloud.serve(Choir(text))
    with pytest.raises(errors.ReplyTooLarge) as caught:
        cloud.client().call(Sing())
    assert (caught.value.method, caught.value.limit) == ("sing", MAX_MESSAGE)
    assert MAX_MESSAGE < caught.value.size < 1.01 * MAX_MESSAGE


def test_a_request_that_is_too_large_for_a_message_is_a_typed_error_and_not_sent(cloud: Cloud) -> None:
    choir = Choir("la")
    cloud.serve(choir)
    with pytest.raises(errors.RequestTooLarge) as caught:
        cloud.client().call(Sing(words="x" * MAX_MESSAGE))
    assert (caught.value.method, caught.value.limit) == ("sing", MAX_MESSAGE)
    assert MAX_MESSAGE < caught.value.size < 1.01 * MAX_MESSAGE
    assert cloud.client().call(Sing(words="x" * (MAX_MESSAGE - 200))) == "la"


@pytest.mark.parametrize(
    ("junk", "path"),
    [
        (Junk(name=5), "$.name"),
        (Junk(name=""), "$.name"),
        (Junk(name=["Ada"]), "$.name"),
        (Junk(titles={}), "$"),
        (Junk(name="Ada", titles={"x": "y"}), "$.titles[...]"),
        (Junk(name="Ada", titles=[[[[]]]]), "$.titles"),
    ],
)
def test_a_bad_message_is_refused_with_the_path_of_its_fault(cloud: Cloud, junk: Junk, path: str) -> None:
    hall = Hall()
    cloud.serve(hall)
    with pytest.raises(errors.InvalidRequest) as caught:
        cloud.client().call(junk)
    assert caught.value.data["path"] == path
    assert hall.greeted == []


def test_ten_megabytes_of_junk_get_a_short_answer(cloud: Cloud) -> None:
    cloud.serve(Hall())
    for junk in (Junk(name="x" * 10_000_000), Junk(name="Ada", nonsense=["x" * 1000] * 10_000)):
        with pytest.raises(errors.InvalidRequest) as caught:
            cloud.client().call(junk)
        assert len(repr(caught.value.data)) < 1000
    assert cloud.client().call(Greet(name="Ada")).text == "Hello Ada"


# --- Versions -------------------------------------------------------------------------------------------------------


def test_the_lowest_version_that_carries_the_message_is_sent(cloud: Cloud) -> None:
    cloud.serve(OldHall())
    assert cloud.client().call(Greet(name="Ada")).text == "Hello Ada"
    with pytest.raises(errors.InvalidRequest, match=r"1\.2") as caught:
        cloud.client().call(Greet(name="Ada", politely=True))
    assert caught.value.data["path"] == "$"


def test_a_server_of_a_former_release_gets_a_message_without_the_guards_that_it_does_not_know(cloud: Cloud) -> None:
    cloud.serve(OldHall())
    assert cloud.client().call(GreetKnown(name="Ada", before=3)).text == "Hello Ada"
    with pytest.raises(errors.InvalidRequest, match=r"1\.2"):
        cloud.client().call(GreetKnown(name="Ada", before=3, politely=True))


def test_a_server_takes_fields_that_came_later(cloud: Cloud) -> None:
    cloud.serve(Hall())
    assert cloud.client().call(Greet(name="Ada", politely=True)).text == "Good day Ada"


@pytest.mark.parametrize("method", ["sing", "target", "_answer", "__init__"])
def test_a_method_that_nobody_serves_is_an_invalid_request(cloud: Cloud, method: str) -> None:
    class Odd(Sing, frozen=True, kw_only=True):
        pass

    Odd.method = method
    cloud.serve(Hall())
    with pytest.raises(errors.InvalidRequest, match="not served"):
        cloud.client().call(Odd())


# --- Errors ---------------------------------------------------------------------------------------------------------

SAMPLES: dict[str, Any] = {
    "instances": 3,
    "explanation": {"filters": [{"name": "ram", "removed": 7}], "nearest": None},
    "attempts": [{"host": "a", "reason": "ü"}, {"host": "b", "reason": ""}],
    "refusals": [{"asked": 2**40, "free": 1.5}],
    "count": 1,
    "named": None,
    "found": 0,
    "tries": 5,
    "seconds": 0.25,
}


OURS = [kind for kind in errors.every_error() if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_every_error_crosses_as_itself(kind: type[errors.MoorageError], cloud_of_errors: tuple[Cloud, Hall]) -> None:
    cloud, hall = cloud_of_errors
    data = {name: SAMPLES.get(name, f"some {name} 'é'") for name in kind.field_names()}
    hall.failure = lambda: kind(**data)
    with pytest.raises(kind) as caught:
        cloud.client().call(Fail())
    assert type(caught.value) is kind
    assert caught.value.data == data
    assert str(caught.value) == str(kind(**data))
    assert caught.value.__suppress_context__


@pytest.fixture(scope="module", params=["inproc", pytest.param("rabbit", marks=pytest.mark.servers)])
def cloud_of_errors(request: pytest.FixtureRequest) -> Iterator[tuple[Cloud, Hall]]:
    """One server for as many tests as there are errors."""
    url = (
        f"inproc://{uuid4()}/" if request.param == "inproc" else request.getfixturevalue("rabbitmq").add_vhost("errors")
    )
    cloud, hall = Cloud(url), Hall()
    cloud.serve(hall)
    yield cloud, hall
    cloud.close()


def test_an_error_that_no_peer_knows_crosses_as_its_nearest_parent(cloud: Cloud) -> None:
    cloud.serve(Hall(failure=lambda: MisplacedKey(kind="key", name="front door", drawer=3)))
    with pytest.raises(errors.NotFound) as caught:
        cloud.client().call(Fail())
    assert type(caught.value) is errors.NotFound
    assert caught.value.data == {"kind": "key", "name": "front door"}


def test_a_crash_is_an_internal_error_without_its_text(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    cloud.serve(Hall(failure=lambda: ZeroDivisionError("secret")))
    with pytest.raises(errors.InternalError) as caught:
        cloud.client().call(Fail())
    assert caught.value.data == {"kind": "ZeroDivisionError"}
    assert "secret" not in str(caught.value)
    assert "secret" in caplog.text


def test_an_error_of_ours_is_not_logged_as_a_crash(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    cloud.serve(Hall(failure=lambda: errors.Overloaded(reason="busy")))
    with pytest.raises(errors.Overloaded):
        cloud.client().call(Fail())
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# --- Time -----------------------------------------------------------------------------------------------------------


def test_a_slow_answer_is_no_reply(cloud: Cloud) -> None:
    hall = Hall()
    cloud.serve(hall)
    # Long enough for the call to be begun beside whatever else runs here: one that comes too late is refused.
    with pytest.raises(errors.NoReply) as caught:
        cloud.client().call(Wait(), timeout=2.0)
    assert caught.value.data == {"topic": cloud.topic, "method": "wait", "seconds": 2.0}
    assert hall.entered.is_set()
    hall.may_leave.set()


def test_a_topic_that_nobody_serves_is_no_reply(cloud: Cloud) -> None:
    # The first call connects: one that has no time left to be sent after that is answered sooner.
    cloud.serve(Hall())
    cloud.client().call(Greet(name="Ada"))
    begin = time.monotonic()
    with pytest.raises(errors.NoReply):
        cloud.caller.client(f"nobody-{uuid4()}").call(Sing(), timeout=2.0)
    assert 1.9 < time.monotonic() - begin < 6.7


def test_a_client_has_a_timeout_of_its_own(cloud: Cloud) -> None:
    with pytest.raises(errors.NoReply) as caught:
        cloud.caller.client(cloud.topic, timeout=0.2).call(Sing())
    assert caught.value.data["seconds"] == 0.2


def test_a_call_waits_for_a_server_that_comes_back(cloud: Cloud) -> None:
    cloud.serve(Hall()).stop()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(cloud.client().call, Greet(name="Ada"), 10)
        time.sleep(0.3)
        cloud.serve(Hall("second"))
        assert answer.result(10).by == "second"


@pytest.mark.parametrize("message", [Greet(name="Ada"), GreetTogether(name="Ada")], ids=["alone", "in a batch"])
def test_a_call_waits_for_the_first_server_of_its_topic(cloud: Cloud, message: Message[Greeting]) -> None:
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(cloud.client().call, message, 10) for _ in range(3)]
        time.sleep(0.5)
        cloud.serve(Hall("first"))
        assert {answer.result(10).by for answer in answers} == {"first"}


def test_the_answer_to_a_call_that_waited_for_its_first_server_is_not_waited_for_longer(cloud: Cloud) -> None:
    hall, begin = Hall(), time.monotonic()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(cloud.client().call, Wait(), 5)
        time.sleep(1.6)
        cloud.serve(hall)
        with pytest.raises(errors.NoReply):
            answer.result(30)
        assert time.monotonic() - begin < 6.3
        assert hall.entered.is_set()
        hall.may_leave.set()


def test_a_call_that_nobody_took_in_time_is_never_carried_out(cloud: Cloud) -> None:
    cloud.serve(Hall()).stop()
    with pytest.raises(errors.NoReply):
        cloud.client().call(Greet(name="Late"), timeout=0.3)
    time.sleep(0.1)
    hall = Hall()
    cloud.serve(hall)
    cloud.client().call(Greet(name="Ada"))
    assert hall.greeted == ["Ada"]


# --- Servers --------------------------------------------------------------------------------------------------------


def test_two_servers_share_the_work(cloud: Cloud) -> None:
    halls = [Hall("first"), Hall("second")]
    for hall in halls:
        cloud.serve(hall, name=hall.name)
    client = cloud.client()
    for number in range(20):
        client.call(Greet(name=str(number)))
    assert sorted(len(hall.greeted) for hall in halls) == [10, 10]


def test_a_directed_call_reaches_its_server(cloud: Cloud) -> None:
    for name in ("first", "second"):
        cloud.serve(Hall(name), name=name)
    for name in ("second", "first", "second"):
        assert cloud.client(name).call(Greet(name="Ada")).by == name
    with pytest.raises(errors.NoReply, match="third"):
        cloud.client("third").call(Greet(name="Ada"), timeout=0.3)


def test_a_server_works_on_several_calls_at_once(cloud: Cloud) -> None:
    hall = Hall()
    cloud.serve(hall)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(cloud.client().call, Wait())
        assert hall.entered.wait(5)
        assert cloud.client().call(Greet(name="Ada")).text == "Hello Ada"
        hall.may_leave.set()
        assert waiting.result(5) == "done"


def test_stopping_answers_the_call_in_flight(cloud: Cloud) -> None:
    hall = Hall()
    server = cloud.serve(hall)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(cloud.client().call, Wait())
        assert hall.entered.wait(5)
        stopped = pool.submit(server.stop)
        time.sleep(0.2)
        assert not stopped.done()
        hall.may_leave.set()
        assert answer.result(10) == "done"
        stopped.result(10)
    server.stop()
    with pytest.raises(errors.NoReply):
        cloud.client().call(Greet(name="Ada"), timeout=0.3)


def test_a_server_and_its_bus_stop_without_waiting_for_another_message(cloud: Cloud) -> None:
    seconds = []
    for _ in range(4):
        with closing(bus.Bus(cloud.conf)) as own:
            server = own.server(cloud.topic, "first", [Hall()])
            server.start()
            own.client(cloud.topic).call(Greet(name="Ada"))
            begin = time.monotonic()
            server.stop()
        seconds.append(time.monotonic() - begin)
    # A wait for a message takes half a second where none comes, and has just begun.
    assert min(seconds) < 0.25


def test_a_message_that_a_stopping_server_has_not_read_is_taken_by_its_peer_before_that_is_idle(
    rabbitmq_url: str,
) -> None:
    with closing(Cloud(rabbitmq_url)) as cloud, ThreadPoolExecutor() as threads:
        busy = Hall("busy")
        first = cloud.serve(busy, threads=1)
        client = cloud.client()
        held = threads.submit(client.call, Wait())
        assert busy.entered.wait(5)
        # The first one is read, and waits for a thread; the others have come as far as the socket, or wait behind.
        greeted = [threads.submit(client.call, Greet(name=name)) for name in ("Ada", "Ben", "Cleo")]
        time.sleep(0.5)
        cloud.serve(Hall("peer"), name="second")
        stopping = threads.submit(first.stop)
        try:
            wait_until(lambda: sum(each.done() and each.result().by == "peer" for each in greeted) >= 2)
            assert not stopping.done()
        finally:
            busy.may_leave.set()
        assert held.result() == "done"
        assert {each.result().text for each in greeted} == {"Hello Ada", "Hello Ben", "Hello Cleo"}


@pytest.mark.parametrize("message", [Wait(), WaitTogether()], ids=["alone", "in a batch"])
def test_a_call_that_is_under_way_when_its_bus_is_closed_has_no_reply(cloud: Cloud, message: Message[str]) -> None:
    hall = Hall()
    cloud.serve(hall)
    with closing(bus.Bus(cloud.conf)) as own, ThreadPoolExecutor() as pool:
        answer = pool.submit(own.client(cloud.topic, timeout=2.0).call, message)
        assert hall.entered.wait(5)
        own.close()
        with pytest.raises(errors.NoReply):
            answer.result(10)
    hall.may_leave.set()


@pytest.mark.parametrize("message", [Greet(name="Ada"), GreetTogether(name="Ada")], ids=["alone", "in a batch"])
@pytest.mark.parametrize("has_called", [True, False], ids=["after a call", "before any"])
def test_a_call_over_a_closed_bus_to_a_broker_says_so(
    rabbitmq_url: str, message: Message[Greeting], has_called: bool
) -> None:
    with closing(Cloud(rabbitmq_url)) as cloud:
        cloud.serve(Hall())
        own = cloud.new_bus()
        client = own.client(cloud.topic)
        if has_called:
            client.call(message)
        own.close()
        with pytest.raises(errors.BusUnavailable, match="closed"):
            client.call(message)


# --- Context --------------------------------------------------------------------------------------------------------


def test_the_request_of_the_origin_and_the_messages_attempt_arrive(cloud: Cloud) -> None:
    cloud.serve(Hall())
    client = cloud.client()
    assert client.call(WhoAmI()) == {"request_id": None, "attempt_id": None}
    assert client.call(Work(request_id="r-1")) == {"request_id": "r-1", "attempt_id": None}
    with context.bound(request_id="origin", attempt_id="a-1"):
        assert client.call(WhoAmI()) == {"request_id": "origin", "attempt_id": "a-1"}
        seen = client.call(Work(request_id="r-2", attempt_id=ATTEMPT))
    assert seen == {"request_id": "origin", "attempt_id": ATTEMPT}
    assert client.call(WhoAmI()) == {"request_id": None, "attempt_id": None}


def test_the_servers_log_lines_carry_both(cloud: Cloud, tmp_path: Path, root_logger: None) -> None:
    file = tmp_path / "log"
    cloud.conf.set_override("log_file", str(file))
    logs.setup(cloud.conf, "hall-service")
    cloud.serve(Hall(failure=lambda: ZeroDivisionError("gone wrong")))
    cloud.client().call(Work(request_id="r-1", attempt_id=ATTEMPT))
    with context.bound(request_id="r-2"), pytest.raises(errors.InternalError):
        cloud.client().call(Fail())
    written = file.read_text()
    assert f"[hall-service r-1 {ATTEMPT}] working hard" in written
    crash = [line for line in written.splitlines() if "gone wrong" in line]
    assert crash
    assert all("[hall-service r-2 -]" in line for line in crash)


# --- What the bus stands on -----------------------------------------------------------------------------------------


def test_nothing_is_patched_and_servers_run_on_threads(cloud: Cloud) -> None:
    server = cloud.serve(Hall())
    patcher = sys.modules.get("eventlet.patcher")
    assert patcher is None or patcher.already_patched == {}
    assert server._server.executor_type == "threading"
    assert threading.Thread.__module__ == "threading"


def test_a_private_configuration_has_all_that_the_library_puts_on_the_global_one(cloud: Cloud) -> None:
    cloud.serve(Hall())
    cloud.client().call(Greet(name="Ada"))
    for group, registered in cfg.CONF._groups.items():
        if group.startswith("oslo_messaging"):
            assert set(registered._opts) <= set(cloud.conf._groups[group]._opts)
    assert set(cfg.CONF._opts) <= set(cloud.conf._opts)
    assert cloud.conf.control_exchange == "moorage"


def test_in_one_process_two_names_never_meet() -> None:
    here, there = Cloud("inproc://here/"), Cloud("inproc://there/")
    there.topic = here.topic
    here.serve(Hall())
    with pytest.raises(errors.NoReply):
        there.client().call(Greet(name="Ada"), timeout=0.2)
    here.close()
    there.close()


def test_a_driver_that_does_not_exist_is_a_fault_of_the_configuration() -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        Cloud("carrierpigeon://me:secret@roof/")
    assert "secret" not in str(caught.value)


# --- The broker comes and goes --------------------------------------------------------------------------------------

NOBODY = "rabbit://me:secret@127.0.0.1:1/"


def test_without_a_broker_everything_fails_soon_and_hides_the_password() -> None:
    cloud = Cloud(NOBODY)
    attempts: list[Callable[[], object]] = [
        lambda: cloud.serve(Hall()),
        lambda: cloud.client().call(Sing()),
        lambda: cloud.client().cast(Sing()),
        cloud.caller.probe,
    ]
    for attempt in attempts:
        begin = time.monotonic()
        with pytest.raises(errors.BusUnavailable) as caught:
            attempt()
        assert time.monotonic() - begin < 8
        assert "secret" not in str(caught.value)
        assert "127.0.0.1" in str(caught.value)
    cloud.close()


def test_a_bus_in_this_process_is_always_there() -> None:
    cloud = Cloud("inproc://anywhere/")
    cloud.caller.probe()
    cloud.close()


@pytest.mark.servers
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # the library drops what has died
def test_after_a_crash_of_the_broker_everything_resumes(rabbitmq: RabbitMQServer) -> None:
    logging.disable()  # records of what has failed would keep dead sockets, to be found in a later test
    try:
        with RabbitMQServer() as broker:  # not the one that others use
            _crash(broker)
    finally:
        logging.disable(logging.NOTSET)
        gc.collect()


def _crash(broker: RabbitMQServer) -> None:
    cloud = Cloud(broker.url)
    cloud.caller.probe()
    server = cloud.serve(Hall())
    client = cloud.client()
    client.call(Greet(name="Ada"))
    broker.kill()
    begin = time.monotonic()
    with pytest.raises((errors.BusUnavailable, errors.NoReply)):
        client.call(Greet(name="Ada"), timeout=5)
    with pytest.raises(errors.BusUnavailable):
        client.cast(Greet(name="Ada"))
    assert time.monotonic() - begin < 30
    broker.start()
    assert _sooner_or_later(client).text == "Hello Ada"
    broker.kill()
    server.stop()
    cloud.close()


def _sooner_or_later(client: bus.Client) -> Greeting:
    for _ in range(20):
        try:
            return client.call(Greet(name="Ada"), timeout=1)
        except errors.Unavailable:
            time.sleep(0.2)
    raise AssertionError("the bus has not come back")


def test_whoever_serves_a_topic_answers_a_ping_and_nobody_else(cloud: Cloud) -> None:
    with pytest.raises(errors.NoReply):
        cloud.client().ping(timeout=0.3)
    cloud.serve(Hall())
    cloud.client().ping(timeout=10)
    cloud.client(server="first").ping(timeout=10)
    with pytest.raises(errors.NoReply):
        cloud.client(server="second").ping(timeout=0.3)
