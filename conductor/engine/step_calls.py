"""The calls of a step: a step may leave them to the worker, which makes those of several operations together.

Such a step is a generator. It yields each :class:`Call`, is sent the answer or raised the error, and returns its
result. The steps of operations that are due at the same time then travel in one message, and one thread does them all.
"""

import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from moorage.messages.wire import Message

if TYPE_CHECKING:
    from moorage.bus.bus import Client

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A call that is to be made."""

    client: "Client"
    message: Message[R]

    def make(self) -> R:
        """Make it in this thread, and return the answer."""
        return self.client.call(self.message)


#: What makes calls and returns a value in the end.
Calling = Generator[Call[Any], Any, T]


def leaves_calls(function: Callable[..., Any]) -> bool:
    """Return whether a step leaves its calls to the worker."""
    return inspect.isgeneratorfunction(function)


def made_here(calling: Calling[T]) -> T:
    """Make calls in this thread, one after another, and return the value in the end."""
    ask: Callable[[], Call[Any]] = calling.__next__
    try:
        while True:
            ask = _answered(calling, ask())
    except StopIteration as end:
        value: T = end.value
        return value


def _answered(calling: Calling[T], call: Call[Any]) -> Callable[[], Call[Any]]:
    """Make a call, and return the function that goes on with its answer or its error."""
    try:
        answer = call.make()
    except BaseException as fault:  # noqa: BLE001 - it is raised where the call was left
        error = fault
        return lambda: calling.throw(error)
    return lambda: calling.send(answer)
