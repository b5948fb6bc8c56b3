"""The types of a step of an operation: its input, its outcomes, and the operation kinds and states.

A step is a function of its operation, or a generator that leaves its calls to the worker (:mod:`.step_calls`). Any
conductor may repeat it, with the same request ids each time: they are derived from the operation's uuid
(:func:`moorage.ids.derived`). Its results are recorded together with the next step, in one transaction that is rolled
back if another transaction has changed the operation meanwhile.
"""

import inspect
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import msgspec
from sqlalchemy import Connection

from conductor.engine.step_calls import Calling
from moorage import errors, ids
from moorage.model import Value

T = TypeVar("T")

BUILD = "build"
DELETE = "delete"
MOVE = "move"
CONFIRM = "confirm"
REVERT = "revert"
SHELVE = "shelve"
UNSHELVE = "unshelve"
REBUILD = "rebuild"
ATTACH = "attach"
DETACH = "detach"
#: In a cell only: make the store's allocations of an instance match the cell's records.
HEAL = "heal"
#: In a cell only: clean up after an attempt that has ended without a confirmation from its host.
CLEAN = "clean"
#: The kinds of operation that an order to delete ends in a cell, at any step.
ENDED_BY_DELETE = (BUILD, MOVE, CONFIRM, REVERT, SHELVE, UNSHELVE, REBUILD, ATTACH, DETACH, HEAL)

#: The reason of a move that the operator has aborted.
ABORTED = "it was aborted"

#: In :func:`step`: the attribute `kind` of the class that has the method or inherits it.
KIND_OF_CLASS = ""

#: The errors after which the outcome of a request is unknown, or the request must be repeated unchanged.
REPEAT_UNCHANGED = (errors.Unavailable, errors.TryAgain, errors.InternalError)


class Superseded(Exception):
    """Another thread or conductor has changed the operation; the results of this step are discarded."""


class NoPayload(Value, frozen=True):
    """The payload of a step that needs only its operation."""


@dataclass(frozen=True)
class Backoff:
    """The wait before a step is retried: ``first`` seconds, three times as long after each try, up to ``longest``."""

    first: float = 1.0
    longest: float = 30.0

    def seconds(self, tries: int) -> float:
        """Return the seconds to wait after this number of failed tries; a quarter is random, to spread retries."""
        wait = min(self.first * 3.0 ** min(tries - 1, 20), self.longest)
        return wait * random.uniform(0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation whose lease this conductor has, with the step to do next."""

    uuid: str
    kind: str
    subject: str
    request_id: str
    step: str
    step_number: int
    payload: bytes
    tries: int
    lease_number: int
    #: Read from the records, not begun or advanced by this process: the step may have been done in part before.
    resumed: bool = False
    #: Seconds to wait before the step is done.
    delay: float = 0.0
    taken_at: float = field(default_factory=time.monotonic)
    #: The records that this step needs, as the transaction that recorded the step has read or written them. Null if the
    #: step was read from the records or is done again: then it reads them itself.
    carried: object = field(default=None, compare=False, repr=False)

    @classmethod
    def new(
        cls, request_id: str, uuid: str, kind: str, subject: str, step: str, payload: Value, carried: object = None
    ) -> Self:
        """Return an operation to begin, with its first step.

        :param request_id: the id of the operator's request that it belongs to, for the log.
        """
        return cls(
            uuid=uuid,
            kind=kind,
            subject=subject,
            request_id=request_id,
            step=step,
            step_number=1,
            payload=msgspec.json.encode(payload),
            tries=0,
            lease_number=1,
            carried=carried,
        )

    @property
    def is_repeated(self) -> bool:
        """True if the step may have been done before, at least in part: its requests may have been sent."""
        return self.tries > 0 or self.resumed

    def read(self, kind: type[T]) -> T:
        """Return the payload of this step, decoded."""
        return msgspec.json.decode(self.payload, type=kind)

    def carried_as(self, kind: type[T]) -> T | None:
        """Return the records that the previous step has passed to this one, or null if it must read them."""
        return self.carried if isinstance(self.carried, kind) else None

    def derived(self, *words: object) -> str:
        """Return the id that this operation derives from ``words``: the same in every conductor, at any time."""
        return ids.derived(self.uuid, *words)


# --- The outcomes of a step -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Next:
    """Continue with another step, after ``delay`` seconds."""

    step: str
    #: Raw if it is the recorded payload, unchanged.
    payload: Value | msgspec.Raw
    delay: float = 0.0
    #: Records that this transaction has written or locked, for the next step. Only this process uses them, and at once:
    #: they must be the same as the step would read.
    carried: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for a message that redirects the operation; if none comes within ``seconds``, do this step.

    The ``reason`` tells the operator why the operation waits.
    """

    step: str
    payload: Value
    seconds: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Repeat the same step after a back-off, with the reason for the operator."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The operation has ended; if there is a reason, it has failed."""

    reason: str | None = None


Outcome = Next | Wait | Retry | Ended
#: The result of a step: a function that is called in the transaction which records the outcome. It writes the results.
CommitStep = Callable[[Connection], Outcome]
Step = Callable[[Operation], CommitStep | Calling[CommitStep]]
V = TypeVar("V")
#: The function of each step, by kind of operation and name.
Steps = Mapping[tuple[str, str], Step]


class SharedCommit(Generic[V]):
    """The result of a step that is written together with the results of other operations, by one statement.

    :param record: writes the results of several operations, and returns their outcomes in the same order. Results that
        may be written together have the same function.
    """

    def __init__(self, record: Callable[[Connection, Sequence[V]], Sequence[Outcome]], result: V) -> None:
        self.record = record
        self.result = result

    def __call__(self, connection: Connection) -> Outcome:
        """Write this result alone."""
        [outcome] = self.record(connection, [self.result])
        return outcome


def ended(reason: str) -> CommitStep:
    """Return the result of a step that has failed for good."""
    return lambda _connection: Ended(reason)


# --- The functions of the steps ---------------------------------------------------------------------------------------

_STEP = "_moorage_step"

M = TypeVar("M", bound=Callable[[Any, Operation], CommitStep | Calling[CommitStep]])


def step(kinds: str | tuple[str, ...], name: str) -> Callable[[M], M]:
    """Mark a method as the function of a step, for one kind of operation or for several kinds."""

    def mark(method: M) -> M:
        setattr(method, _STEP, ((kinds,) if isinstance(kinds, str) else kinds, name))
        return method

    return mark


def steps_of(parts: Iterable[Any], stored: Mapping[str, tuple[str, ...]]) -> Steps:
    """Map each kind and step to its function: the method that a part marks with :func:`step`.

    :raises TypeError: a step has two functions or none, or its name is not in ``stored``.
    """
    found: dict[tuple[str, str], Step] = {}
    for part in parts:
        for attribute in dir(type(part)):
            # Look it up on the class: on the object, the look-up would run its properties.
            kinds, name = getattr(inspect.getattr_static(type(part), attribute), _STEP, ((), ""))
            for kind in kinds:
                key = (part.kind if kind == KIND_OF_CLASS else kind, name)
                if key in found:
                    raise TypeError(f"step {' '.join(key)} has two functions")
                found[key] = getattr(part, attribute)
    if odd := found.keys() ^ {(kind, name) for kind, names in stored.items() for name in names}:
        # An operation whose step has no function would wait for a newer release for ever.
        raise TypeError(f"steps with no function, or with a name that is not on record: {sorted(odd)}")
    return found
