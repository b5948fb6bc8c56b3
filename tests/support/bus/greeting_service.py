"""A service with its messages, and a broker to which tests connect, for the contract of the bus."""

import logging
import threading
from collections.abc import Callable
from typing import Any, ClassVar
from uuid import uuid4

from msgspec import field

from moorage import context, errors
from moorage.bus import bus
from moorage.config import options
from moorage.messages.wire import Message, Mutation
from moorage.model import Name, Uuid, Value

LOG = logging.getLogger("moorage.test_bus")
ATTEMPT = "11111111-2222-3333-4444-555555555555"


class Greeting(Value, frozen=True, kw_only=True):
    text: str
    by: str = "nobody"


class Greet(Message[Greeting], frozen=True, kw_only=True):
    topic = "greeting"
    method = "greet"
    since: ClassVar = {"politely": "1.2"}
    name: Name
    titles: dict[str, int] = field(default_factory=dict)
    politely: bool = False


class GreetTogether(Greet, frozen=True, kw_only=True):
    """A greeting that may travel together with others."""

    method = "greet"
    may_be_batched = True


class GreetKnown(Message[Greeting], frozen=True, kw_only=True):
    """A greeting that names how often the guest has been greeted before."""

    topic = "greeting"
    method = "greet"
    since: ClassVar = {"politely": "1.2", "before": "1.6"}
    guards: ClassVar = frozenset({"before"})
    name: Name
    politely: bool = False
    before: int | None = None


class OldGreet(Message[Greeting], frozen=True, kw_only=True):
    """The greeting of an older server, without the field `politely`."""

    topic = "greeting"
    method = "greet"
    name: Name
    titles: dict[str, int] = field(default_factory=dict)


class OldGreeting(Value, frozen=True, kw_only=True):
    text: str


class AskOldGreeting(Message[OldGreeting], frozen=True, kw_only=True):
    """The greeting of an older client: its answer has no field `by`."""

    topic = "greeting"
    method = "greet"
    name: Name


class AnyContent(Message[Any], frozen=True, kw_only=True):
    """A message with arbitrary contents, from a foreign client."""

    topic = "greeting"
    method = "greet"
    name: Any = None
    titles: Any = None
    nonsense: Any = None


class GetText(Message[str], frozen=True, kw_only=True):
    topic = "greeting"
    method = "get_text"
    words: str = ""


class Fail(Message[str], frozen=True, kw_only=True):
    topic = "greeting"
    method = "fail"
    how: str = ""


class Work(Mutation[dict[str, str | None]], frozen=True, kw_only=True):
    topic = "greeting"
    method = "work"
    attempt_id: Uuid | None = None


class WhoAmI(Message[dict[str, str | None]], frozen=True, kw_only=True):
    topic = "greeting"
    method = "who_am_i"


class Wait(Message[str], frozen=True, kw_only=True):
    topic = "greeting"
    method = "wait"


class WaitTogether(Wait, frozen=True, kw_only=True):
    """A wait that may travel together with others."""

    method = "wait"
    may_be_batched = True


class MisplacedKey(errors.NotFound):
    """An error of a plug-in, which other processes do not know."""

    code = "elsewhere.key"
    drawer: int


class GreetingService:
    """A service that records its calls and fails as a test wants."""

    def __init__(self, name: str = "greeting", failure: Callable[[], BaseException] | None = None) -> None:
        self.name = name
        self.failure = failure
        self.greeted: list[str] = []
        self.entered = threading.Event()
        self.may_leave = threading.Event()

    @property
    def never_asked(self) -> str:
        raise AssertionError("the search for handlers must not run properties")

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


class OldGreetingService:
    @bus.serves(OldGreet)
    def greet(self, message: OldGreet) -> Greeting:
        return Greeting(text=f"Hello {message.name}")


class TextService:
    """A service with an answer of a given size."""

    def __init__(self, text: str) -> None:
        self.text = text

    @bus.serves(GetText)
    def get_text(self, message: GetText) -> str:
        return self.text


class Cloud:
    """A broker with the buses that a test connects to it."""

    def __init__(self, url: str) -> None:
        self.conf = options.new({"DEFAULT": {"transport_url": url}, "rpc": {"call_timeout": 30}})
        self.buses: list[bus.Bus] = []
        self.caller = self.new_bus()
        self.topic = f"greeting-{uuid4()}"

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
