"""A server that counts its calls, and the clients that call it together."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import uuid4

from moorage import context, errors
from moorage.batches import BatchItem
from moorage.bus import bus
from moorage.config import options
from moorage.messages import wire
from moorage.model import RequestId

Item = BatchItem[wire.Message[Any], Any]
TOGETHER = 24


class Number(wire.Mutation[str], frozen=True, kw_only=True):
    topic = "counter"
    method = "number"
    may_be_batched = True
    number: int


class Slow(wire.Message[str], frozen=True, kw_only=True):
    topic = "counter"
    method = "slow"
    may_be_batched = True


class Listed(wire.Mutation[str], frozen=True, kw_only=True):
    topic = "counter"
    method = "listed"
    may_be_batched = True
    number: int


class Grouped(Listed, frozen=True, kw_only=True):
    method = "grouped"


class Counters:
    """Answers a number by its text, refuses each third one, and answers slow calls when a test allows it."""

    def __init__(self) -> None:
        self.done: Counter[int] = Counter()
        self.contexts: dict[int, tuple[str | None, float | None]] = {}
        self.entered = threading.Event()
        self.lock = threading.Lock()
        self.slow_calls = 0
        self.may_go_on = threading.Event()
        #: The numbers that were handled together, for each message.
        self.lists: list[list[int]] = []
        self.list_fails = False

    @bus.serves(Listed)
    def listed(self, message: Listed) -> str:
        return self.number(Number(request_id=message.request_id, number=message.number))

    @bus.serves_many(Listed)
    def many_listed(self, calls: Sequence[BatchItem[Listed, str]]) -> list[Callable[[], str] | None]:
        """Answer numbers; each fifth one is answered when a test allows it."""
        self.lists.append([call.value.number for call in calls])
        if self.list_fails:
            raise errors.StoreUnavailable(schema="main", reason="it is away")
        alone: list[Callable[[], str] | None] = []
        for call in calls:
            if call.value.number % 5 == 0:
                alone.append(partial(self.listed_late, call.value))
            else:
                alone.append(None)
                call.do(self.listed)
        return alone

    def listed_late(self, message: Listed) -> str:
        assert self.may_go_on.wait(20)
        return self.listed(message)

    @bus.serves(Grouped)
    def grouped(self, message: Grouped) -> str:
        return self.listed(message)

    @bus.serves_many(Grouped)
    def many_grouped(self, calls: Sequence[BatchItem[Grouped, str]]) -> list[bus.LaterCalls]:
        """Answer numbers in one separate thread; each fifth one is answered alone, when a test allows it."""
        self.lists.append([call.value.number for call in calls])
        if self.list_fails:
            raise errors.StoreUnavailable(schema="main", reason="it is away")

        def end() -> Iterator[dict[BatchItem[Any, Any], Callable[[], Any] | None]]:
            at_once = [call for call in calls if call.value.number % 5]
            for call in at_once:
                call.do(self.grouped)
            yield dict.fromkeys(at_once)
            yield {call: partial(self.listed_late, call.value) for call in calls if not call.value.number % 5}

        return [bus.LaterCalls(end)] * len(calls)

    @bus.serves(Number)
    def number(self, message: Number) -> str:
        self.done[message.number] += 1
        self.contexts[message.number] = (context.current().request_id, context.seconds_left())
        if message.number % 3 == 0:
            raise errors.InstanceNotFound(name=str(message.number))
        return f"number {message.number}"

    @bus.serves(Slow)
    def slow(self, message: Slow) -> str:
        with self.lock:
            self.slow_calls += 1
        self.entered.set()
        assert self.may_go_on.wait(20)
        return "at last"


class CountingRig:
    """A broker, a server of one topic, and a client."""

    def __init__(self, url: str) -> None:
        self.conf = options.new({"DEFAULT": {"transport_url": url}, "rpc": {"call_timeout": 20}})
        self.buses = [bus.Bus(self.conf), bus.Bus(self.conf)]
        self.topic = f"counter-{uuid4()}"
        self.counters = Counters()
        self.serve("first")
        self.client = self.buses[1].client(self.topic)
        self.pool = ThreadPoolExecutor(TOGETHER + 1)

    def serve(self, name: str, threads: int = 8) -> None:
        self.buses.append(bus.Bus(self.conf))
        self.buses[-1].server(self.topic, name, [self.counters], threads).start()

    def call(self, number: int, timeout: float | None = None, kind: "type[Number | Listed]" = Number) -> object:
        """Return the answer or the error to a number."""
        try:
            return self.client.call(kind(request_id=request_id(number), number=number), timeout)
        except errors.MoorageError as fault:
            return fault

    def begin_calls(self, numbers: range, kind: "type[Number | Listed]" = Number) -> "dict[int, Future[object]]":
        """Call with these numbers at the same time, each in its own thread."""
        begin = threading.Barrier(len(numbers))

        def one(number: int) -> object:
            begin.wait(20)
            return self.call(number, kind=kind)

        return {number: self.pool.submit(one, number) for number in numbers}

    def call_at_once(self, numbers: range) -> dict[int, object]:
        return {number: call.result() for number, call in self.begin_calls(numbers).items()}

    def close(self) -> None:
        self.counters.may_go_on.set()
        self.pool.shutdown()
        for each in self.buses:
            each.close()


def request_id(number: int) -> RequestId:
    return f"00000000-0000-4000-8000-{number:012}"


def is_right(number: int, answer: object) -> bool:
    if number % 3 == 0:
        return (
            isinstance(answer, errors.InstanceNotFound)
            and answer.data == errors.InstanceNotFound(name=str(number)).data
        )
    return answer == f"number {number}"
