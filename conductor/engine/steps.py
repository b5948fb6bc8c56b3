"""What a step of an operation is: what it is given, and what may come of it.

A step is a function of its operation. It may be done again by anyone, and names the same ids each time: they follow
from the operation's uuid (:func:`moorage.ids.derived`). What it found out is recorded together with the step that
comes next, in one transaction that counts only if nobody else has moved the operation meanwhile.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from sqlalchemy import Connection

from moorage import ids
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
#: Of a cell alone: have the store hold for an instance what is on record here.
HEAL = "heal"
#: Of a cell alone: see to it that nothing is left of an attempt that has ended without its host's word.
CLEAN = "clean"


class Superseded(Exception):
    """Somebody else has moved the operation; whatever this one has found out no longer counts."""


class NoPayload(Value, frozen=True):
    """The payload of a step that needs only its operation."""


@dataclass(frozen=True)
class Backoff:
    """How long to wait before a step is tried again: ``first`` seconds, then three times as long, up to ``longest``."""

    first: float = 1.0
    longest: float = 30.0

    def seconds(self, tries: int) -> float:
        """Return the wait after so many tries in vain, with a quarter of it at random, so that many do not march."""
        wait = min(self.first * 3.0 ** min(tries - 1, 20), self.longest)
        return wait * random.uniform(0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation in the hands of this conductor, about to do a step."""

    uuid: str
    kind: str
    subject: str
    request_id: str
    step: str
    step_number: int
    payload: bytes
    tries: int
    lease_number: int
    #: Found in the records rather than begun or moved just now: the step may have been done before, in part or whole.
    resumed: bool = False
    #: Seconds to wait before the step is done.
    delay: float = 0.0
    taken_at: float = field(default_factory=time.monotonic)

    @property
    def is_repeated(self) -> bool:
        """Tell whether the step may have been done before, in part or whole: its requests may have been sent."""
        return self.tries > 0 or self.resumed

    def read(self, kind: type[T]) -> T:
        """Return what was written down for this step."""
        return msgspec.json.decode(self.payload, type=kind)

    def derived(self, *words: object) -> str:
        """Return the id that this operation uses for ``words``: the same whoever asks, and whenever."""
        return ids.derived(self.uuid, *words)


# --- What may come of a step ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Next:
    """Go on with another step, after ``delay`` seconds."""

    step: str
    #: Raw where it is what was recorded before.
    payload: Value | msgspec.Raw
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on when a message says so; if none does within ``seconds``, do this step.

    With a reason somebody is to see why it waits.
    """

    step: str
    payload: Value
    seconds: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Do the same step again later, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing is left to do; with a reason, what was asked for could not be had."""

    reason: str | None = None


Outcome = Next | Wait | Retry | Ended
#: What a step hands back: called in the transaction that records the outcome, it writes what the step has found out.
CommitStep = Callable[[Connection], Outcome]
Step = Callable[[Operation], CommitStep]


@dataclass(frozen=True, slots=True)
class NewOperation:
    """An operation to be begun."""

    uuid: str
    kind: str
    subject: str
    step: str
    payload: Value
