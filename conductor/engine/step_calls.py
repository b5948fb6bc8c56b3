"""The calls of a step: a step may leave them to the worker, which makes those of several operations together.

Such a step is a generator. It yields each :class:`StepCall`, is sent the answer or raised the error, and returns its
result. The calls of operations that are due at the same time then travel in one message, and one thread does the steps
of all. A step that waits for anything else yields a function that does so: the others are not to wait for it.
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
class StepCall(Generic[R]):
    """A call that is to be made."""

    client: "Client"
    message: Message[R]

    def make(self) -> R:
        """Make it in this thread, and return the answer."""
        return self.client.call(self.message)


#: What leaves calls, and whatever else it waits for, to the worker, and returns a value in the end.
Calling = Generator[StepCall[Any] | Callable[[], Any], Any, T]


def leaves_calls(function: Callable[..., Any]) -> bool:
    """Return whether a step leaves its calls to the worker."""
    return inspect.isgeneratorfunction(function)


def made_here(calling: Calling[T]) -> T:
    """Make calls in this thread, one after another, and return the value in the end."""
    go_on: Callable[[], StepCall[Any] | Callable[[], Any]] = calling.__next__
    try:
        while True:
            go_on = _answered(calling, go_on())
    except StopIteration as end:
        value: T = end.value
        return value


def _answered(
    calling: Calling[T], need: StepCall[Any] | Callable[[], Any]
) -> Callable[[], StepCall[Any] | Callable[[], Any]]:
    """Make a call, and return the function that goes on with its answer or its error."""
    try:
        answer = found(need)
    except BaseException as fault:  # noqa: BLE001 - it is raised where the call was left
        error = fault
        return lambda: calling.throw(error)
    return lambda: calling.send(answer)


def found(need: StepCall[Any] | Callable[[], Any]) -> Any:
    """Find in this thread what a step waits for."""
    return need.make() if isinstance(need, StepCall) else need()
