"""Test the client of calls that are never postponed: a silent service holds none of their threads for long."""

from collections.abc import Iterator
from typing import Any

import pytest

from conductor.engine import bulkheads
from conductor.engine.bulkheads import Bulkheads
from conductor.engine.guarded_client import GuardedClient
from conductor.engine.steps import Backoff
from harness.waiting import wait_until
from moorage import errors
from moorage.batches import BatchItem
from moorage.messages import ListCells

MESSAGE = ListCells()


class SilentService:
    """Answers nothing before the test allows it."""

    def __init__(self) -> None:
        self.answers = False
        self.calls = self.pings = 0
        self.probe_timeouts: list[float | None] = []
        #: Whether it answers each of the next calls.
        self.to_come: list[bool] = []

    def call(self, message: ListCells) -> list[Any]:
        self.calls += 1
        return self._answer(message.method)

    def call_many(self, items: list[BatchItem[Any, Any]]) -> Iterator[list[BatchItem[Any, Any]]]:
        for item in items:
            self.answers = self.to_come.pop(0)
            item.do(self.call)
            self.answers = False
            yield [item]

    def ping(self, timeout: float | None = None) -> None:
        self.pings += 1
        self.probe_timeouts.append(timeout)
        self._answer("ping")

    def _answer(self, method: str) -> list[Any]:
        if not self.answers:
            raise errors.NoReply(topic="placement", method=method, seconds=1.0)
        return []


@pytest.fixture
def destinations() -> Iterator[Bulkheads]:
    made = Bulkheads("service", 1, Backoff(0.001, 0.01), (errors.NoReply,), 60.0, postpones=False)
    made.start()
    yield made
    made.stop()


def test_a_service_that_does_not_answer_is_not_called_until_it_answers_a_probe(destinations: Bulkheads) -> None:
    service = SilentService()
    client = GuardedClient(service, destinations, "placement")  # type: ignore[arg-type]  # the part that is used
    with pytest.raises(errors.NoReply):
        client.call(MESSAGE)
    wait_until(lambda: service.pings > 1)

    with pytest.raises(errors.Overloaded, match="list_cells was not sent to placement: it has not answered for 0 s"):
        client.call(MESSAGE)
    with bulkheads.StepScope(tries=0), pytest.raises(errors.Overloaded):
        client.call(MESSAGE)
    assert service.calls == 1
    service.answers = True
    before = service.pings
    wait_until(lambda: service.pings > before)
    wait_until(lambda: _answered(client))


def test_a_caller_may_learn_that_its_message_was_not_sent(destinations: Bulkheads) -> None:
    service = SilentService()
    client = GuardedClient(service, destinations, "placement")  # type: ignore[arg-type]  # the part that is used
    with pytest.raises(errors.NoReply):
        client.call_if_admitted(MESSAGE)
    wait_until(lambda: service.pings > 1)

    with pytest.raises(bulkheads.CircuitOpen):
        client.call_if_admitted(MESSAGE)
    assert service.calls == 1
    assert set(service.probe_timeouts) == {2.0}, "the probe does not wait as long as a call"


def test_a_call_of_a_step_is_not_postponed_when_the_share_is_used_up(destinations: Bulkheads) -> None:
    service = SilentService()
    service.answers = True
    client = GuardedClient(service, destinations, "placement")  # type: ignore[arg-type]  # the part that is used
    with destinations.admit("placement", "placement", service.ping), bulkheads.StepScope(tries=0):
        assert client.call(MESSAGE) == []


def test_calls_of_one_thread_show_that_a_service_is_silent_only_if_none_is_answered(destinations: Bulkheads) -> None:
    service = SilentService()
    client = GuardedClient(service, destinations, "placement")  # type: ignore[arg-type]  # the part that is used

    def call_many(*answers: bool) -> list[BatchItem[Any, Any]]:
        service.to_come = list(answers)
        items: list[BatchItem[Any, Any]] = [BatchItem(MESSAGE) for _ in answers]
        assert [item for portion in client.call_many_if_admitted(items) for item in portion] == items
        return items

    assert [type(item.error) for item in call_many(True, False)] == [type(None), errors.NoReply]
    assert [type(item.error) for item in call_many(False, False)] == [errors.NoReply] * 2
    wait_until(lambda: service.pings > 1)

    with pytest.raises(bulkheads.CircuitOpen):
        call_many(True, True)
    assert service.calls == 4


def _answered(client: GuardedClient) -> bool:
    try:
        return client.call(MESSAGE) == []
    except errors.Overloaded:
        return False
