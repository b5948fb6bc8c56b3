"""The calls of a step: a step may leave them to the worker, which makes the calls of several operations together.

Such a step is a generator. It yields each :class:`StepCall`, receives the answer or the error, and returns its result.
The calls of operations that are due at the same time are then sent in one message, and one thread does all the steps.
If a step waits for anything else, it yields a function that waits, so that the other steps need not wait too.
"""

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
    """A call that a step needs."""

    client: "Client"
    message: Message[R]


#: A generator that leaves its calls and other waits to the worker, and returns a value at the end.
Calling = Generator[StepCall[Any] | Callable[[], Any], Any, T]


def run_calls_here(calling: Calling[T]) -> T:
    """Run a generator with its calls in this thread, one after another, and return its value."""
    try:
        need = next(calling)
        while True:
            try:
                answer = fulfil(need)
            except BaseException as fault:  # noqa: BLE001 - it is raised where the call was left
                need = calling.throw(fault)
            else:
                need = calling.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


def fulfil(need: StepCall[Any] | Callable[[], Any]) -> Any:
    """Make the call or run the function that a step waits for, in this thread; return its result."""
    return need.client.call(need.message) if isinstance(need, StepCall) else need()
