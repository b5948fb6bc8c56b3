"""The memory that is freed once a handler has refused a request."""

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from moorage import errors
from moorage.batches import BatchItem
from moorage.bus.bus import oslo_messaging
from moorage.bus.handlers import Endpoint, ReceivedCall
from moorage.messages import ListCells
from moorage.model import Cell


class Large:
    """Stands for the snapshot of all hosts on which a request was decided."""


MADE: list["weakref.ref[Large]"] = []


def refuse(_message: ListCells) -> list[Cell]:
    large = Large()
    MADE.append(weakref.ref(large))
    raise errors.InvalidState(reason="not now")


def refuse_many(items: Sequence[BatchItem[Any, Any]]) -> list[Callable[[], Any] | None]:
    for item in items:
        item.do(refuse)
    return [None] * len(items)


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    MADE.clear()
    gc.disable()
    yield
    gc.enable()


def test_what_a_handler_has_made_is_free_once_its_refusal_is_answered() -> None:
    endpoint: Any = Endpoint(ListCells, refuse, None, refuse_many)
    with pytest.raises(oslo_messaging.ExpectedException):
        endpoint.list_cells({})
    answers = endpoint.answer_many([ReceivedCall({}, {}), ReceivedCall({}, {})])
    assert [type(answer.failure[1]) for answer in answers] == [errors.InvalidState] * 2
    assert [made() for made in MADE] == [None] * 3
