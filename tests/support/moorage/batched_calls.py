"""Calls that arrive in one message, and the outcomes of calls, for comparisons."""

from collections.abc import Callable, Sequence
from typing import Any

from conductor.engine.steps import Superseded
from moorage import errors
from moorage.batches import BatchItem


def outcome_of(call: Callable[[], object]) -> object:
    """Return the answer of a call, or the type of its error; raise an error that no test has on purpose."""
    try:
        return call()
    except (errors.MoorageError, Superseded, ValueError) as fault:
        return type(fault)


def handle_together(
    handler: Callable[[list[BatchItem[Any, Any]]], Sequence[Callable[[], Any] | None]], messages: Sequence[object]
) -> list[object]:
    """Have messages handled that arrived in one message; return the answer of each, or the type of its error.

    :param handler: a method marked `@serves_many`, which returns a function for each call that must be handled alone.
    """
    calls: list[BatchItem[Any, Any]] = [BatchItem(message) for message in messages]
    for call, alone in zip(calls, handler(calls), strict=True):
        if alone is not None:
            call.do(lambda _message, alone=alone: alone())  # type: ignore[misc]
    return [outcome_of(call.outcome) for call in calls]
