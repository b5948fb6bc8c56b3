"""Test the answers of a handler that refuses or fails: they keep no objects, and the log names the place of a fault."""

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from moorage import errors
from moorage.batches import BatchItem
from moorage.bus.handlers import Endpoint, LaterCalls, ReceivedCall
from moorage.messages import ListCells
from moorage.model import Cell

import oslo_messaging


class Large:
    """Stands for the snapshot of all hosts on which a request was decided."""


MADE: list["weakref.ref[Large]"] = []


def refuse(_message: ListCells) -> list[Cell]:
    large = Large()
    MADE.append(weakref.ref(large))
    raise errors.InvalidState(reason="not now")


def refuse_for_a_cause(_message: ListCells) -> list[Cell]:
    large = Large()
    MADE.append(weakref.ref(large))
    try:
        raise ValueError(large)
    except ValueError as fault:
        raise errors.InvalidState(reason="not now") from fault


def refuse_in_place_of_a_fault(_message: ListCells) -> list[Cell]:
    large = Large()
    MADE.append(weakref.ref(large))
    try:
        raise ValueError("fault")
    except ValueError:
        raise errors.InvalidState(reason="not now") from None


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    MADE.clear()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("handler", [refuse, refuse_for_a_cause, refuse_in_place_of_a_fault])
def test_objects_of_a_handler_are_freed_once_its_refusal_is_answered(handler: Callable[[Any], Any]) -> None:
    def refuse_many(items: Sequence[BatchItem[Any, Any]]) -> list[Callable[[], Any] | None]:
        for item in items:
            item.do(handler)
        return [None] * len(items)

    endpoint: Any = Endpoint(ListCells, handler, None, refuse_many)
    with pytest.raises(oslo_messaging.ExpectedException):
        endpoint.list_cells({})
    answers = endpoint.answer_many([ReceivedCall({}, {}), ReceivedCall({}, {})])
    assert [type(answer.failure[1]) for answer in answers] == [errors.InvalidState] * 2
    assert [made() for made in MADE] == [None] * 3


@pytest.mark.parametrize("fails", [False, True])
def test_calls_that_end_later_together_are_answered_at_their_positions_and_all_get_an_answer(fails: bool) -> None:
    def end_later(items: Sequence[BatchItem[Any, Any]]) -> list[Callable[[], Any] | LaterCalls | None]:
        items[0].succeed([])

        def end() -> Iterator[dict[BatchItem[Any, Any], Callable[[], Any] | None]]:
            items[2].succeed([])
            yield {items[2]: None}
            if fails:
                raise errors.InvalidState(reason="not now")
            items[1].fail(errors.CellNotFound(name="one"))
            items[3].succeed([])
            yield {items[3]: None, items[1]: None}

        later = LaterCalls(end)
        return [None, later, later, later]

    endpoint: Any = Endpoint(ListCells, refuse, None, end_later)
    call, odd = ReceivedCall({}, {}), ReceivedCall({}, {"odd": 1})
    answers = endpoint.answer_many([call, call, odd, call, call])

    assert answers[0].failure is None
    assert answers[2].failure[0] is errors.InvalidRequest
    assert answers[1] is answers[3] is answers[4]
    portions = [
        [(position, answer.failure and answer.failure[0]) for position, answer in portion]
        for portion in answers[1].portions()
    ]
    rest = [(1, errors.InvalidState), (4, errors.InvalidState)] if fails else [(4, None), (1, errors.CellNotFound)]
    assert portions == [[(3, None)], rest]


def test_each_call_of_a_batch_that_fails_is_logged_with_the_place_of_the_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def place_of_the_fault(_items: Sequence[BatchItem[Any, Any]]) -> list[Callable[[], Any] | None]:
        raise ZeroDivisionError

    endpoint: Any = Endpoint(ListCells, refuse, None, place_of_the_fault)
    answers = endpoint.answer_many([ReceivedCall({}, {}), ReceivedCall({}, {})])
    assert [type(answer.failure[1]) for answer in answers] == [errors.InternalError] * 2
    assert caplog.text.count(", in place_of_the_fault") == 2
