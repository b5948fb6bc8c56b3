"""Calls that arrive in one message, and the outcomes of calls, for comparisons."""

from collections.abc import Callable, Sequence
from typing import Any

from conductor.engine.steps import Superseded
from moorage import errors
from moorage.batches import BatchItem
from moorage.bus.bus import LaterCalls


def outcome_of(call: Callable[[], object]) -> object:
    """Return the answer of a call, or the type of its error; raise an error that no test has on purpose."""
    try:
        return call()
    except (errors.MoorageError, Superseded, ValueError) as fault:
        return type(fault)


def handle_together(
    handler: Callable[[list[BatchItem[Any, Any]]], Sequence[Callable[[], Any] | LaterCalls | None]],
    messages: Sequence[object],
) -> list[object]:
    """Have messages handled that arrived in one message; return the answer of each, or the type of its error.

    :param handler: a method marked `@serves_many`.
    """
    calls: list[BatchItem[Any, Any]] = [BatchItem(message) for message in messages]
    ends = handler(calls)
    for call, end in zip(calls, ends, strict=True):
        if end is not None and not isinstance(end, LaterCalls):
            call.do(lambda _message, end=end: end())  # type: ignore[misc]
    for later in {end for end in ends if isinstance(end, LaterCalls)}:
        ended: list[BatchItem[Any, Any]] = []
        for portion in later.end():
            ended += portion
            for call, end_alone in portion.items():
                if end_alone is not None:
                    call.do(lambda _message, end=end_alone: end())  # type: ignore[misc]
        assert set(ended) == {call for call, end in zip(calls, ends, strict=True) if end is later}
        assert len(ended) == len(set(ended))
    return [outcome_of(call.outcome) for call in calls]
