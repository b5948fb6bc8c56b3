"""Failpoints: named places in the mechanisms at which a test has a process killed, stopped, delayed or struck dumb.

They stand where a crash makes a difference, in the mechanisms and not in each message or step, so that a new message
or step has them without anybody thinking of it. A name is where the thread is, then the event there:

* ``serve.<topic>.<method>``: in a handler. ``begin``; ``reply`` when it is done, before its answer is sent.
* ``step.<kind>.<step>``: in a step of an operation. ``begin``; ``done`` before what it found out is recorded.
* in either, and in a thread that is in neither: ``commit`` and ``committed`` around each COMMIT of a write,
  ``send.<topic>.<method>`` and ``answered.<topic>.<method>`` around each call;
* on a host, ``spawn`` and ``spawned``, ``destroy`` and ``destroyed``, ``order.<action>`` and ``ordered.<action>``
  around what its driver does.

So the scheduler, about to commit a claim, is at ``serve.scheduler.select_destinations.commit``.

They are off unless ``MOORAGE_FAILPOINTS`` says otherwise when the `moorage` command starts, and then cost one look at
a variable that is null. It holds one or more ``name=action`` with commas between them; ``*`` in a name stands for
anything. Actions, each with ``@n`` behind it if it is for the n-th time alone (otherwise for every time):

``kill``            SIGKILL to this process
``stop``            SIGSTOP to this process, until somebody sends it SIGCONT
``wait:<seconds>``  sleep
``drop``            the message is lost (only at ``reply``, ``send`` and ``answered``)
``log``             a line in the log; what a test lists the failpoints by
"""

import fnmatch
import itertools
import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field

from moorage import errors

LOG = logging.getLogger(__name__)

VARIABLE = "MOORAGE_FAILPOINTS"

Action = Callable[[str], None]


class Dropped(BaseException):
    """A message is to be lost here. Not an ``Exception``: on its way it must be nobody's fault to handle."""


# A process is killed or stopped as a whole, so what does it is the process's own: the only such thing in Moorage.
_reaction: Action | None = None
_place: ContextVar[str] = ContextVar("moorage_failpoints_place", default="")
_NOTHING: AbstractContextManager[None] = nullcontext()


# --- In the mechanisms ----------------------------------------------------------------------------------------------


def reached(event: str, *words: str) -> None:
    """Pass the failpoint of this event, where the current thread is.

    :raises Dropped: the message that is about to be sent, or has arrived, is to be lost.
    """
    if _reaction is not None:
        _reaction(".".join(filter(None, (_place.get(), event, *words))))


def within(*place: str) -> AbstractContextManager[None]:
    """Name the place in which the current thread is, until exit."""
    return _NOTHING if _reaction is None else _entered(".".join(place))


@contextmanager
def _entered(place: str) -> Iterator[None]:
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


def declare(*place: str) -> None:
    """Say that there is such a place, whether or not anybody ever gets there."""
    if _reaction is not None:
        LOG.info("There is a place %s", ".".join(place))


# --- Switching on ---------------------------------------------------------------------------------------------------


def switch_on(specification: str) -> None:
    """Have this process do, from now on, what ``specification`` says; empty, nothing.

    :raises ConfigurationError: it cannot be understood.
    """
    global _reaction
    armed = [_parse(part.strip()) for part in specification.split(",") if part.strip()]
    _reaction = _reaction_of(armed) if armed else None
    if armed:
        LOG.warning("Failpoints are on, which is for tests alone: %s", specification)


@contextmanager
def observed(reaction: Action) -> Iterator[None]:
    """Have ``reaction`` called with the name of each failpoint that is passed, until exit; for tests in one process."""
    global _reaction
    before, _reaction = _reaction, reaction
    try:
        yield
    finally:
        _reaction = before


@dataclass
class _Armed:
    """What is done at failpoints of one name."""

    pattern: re.Pattern[str]
    action: Action
    #: Which time it is done; null for every time.
    turn: int | None
    times: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))


_SPECIFICATION = re.compile(
    r"(?P<name>[\w.*]+)=(?P<action>\w+)(?::(?P<seconds>\d+(?:\.\d+)?))?(?:@(?P<turn>[1-9]\d*))?"
)
_DROPPING = re.compile(r"(?:.*\.)?(?:reply|(?:send|answered)\.[\w.*]+)")


def _parse(part: str) -> _Armed:
    found = _SPECIFICATION.fullmatch(part)
    if found is None:
        raise errors.ConfigurationError(reason=f"{VARIABLE}: {part!r} is not name=action or name=action@n")
    name, action, seconds, turn = found.group("name", "action", "seconds", "turn")
    if action == "wait" and seconds is not None:
        done = _waiting(float(seconds))
    elif action in _ACTIONS and seconds is None:
        done = _ACTIONS[action]
    else:
        raise errors.ConfigurationError(reason=f"{VARIABLE}: {part!r} does not name an action")
    if action == "drop" and not _DROPPING.fullmatch(name):
        raise errors.ConfigurationError(reason=f"{VARIABLE}: no message is sent or received at {name}")
    return _Armed(re.compile(fnmatch.translate(name)), done, None if turn is None else int(turn))


def _reaction_of(armed: Sequence[_Armed]) -> Action:
    def react(name: str) -> None:
        for one in armed:
            # The count's own step is atomic: threads share it.
            if one.pattern.fullmatch(name) and (one.turn is None or next(one.times) == one.turn):
                one.action(name)

    return react


def _kill(name: str) -> None:
    LOG.warning("Failpoint %s kills", name)
    _signal(signal.SIGKILL)


def _stop(name: str) -> None:
    LOG.warning("Failpoint %s stops", name)
    _signal(signal.SIGSTOP)


def _signal(number: signal.Signals) -> None:
    # To this very thread: the whole process meets its fate all the same, and this thread does not run on until then.
    signal.pthread_kill(threading.get_ident(), number)


def _drop(name: str) -> None:
    LOG.warning("Failpoint %s drops", name)
    raise Dropped(name)


def _log(name: str) -> None:
    LOG.info("Failpoint %s is passed", name)


def _waiting(seconds: float) -> Action:
    def wait(name: str) -> None:
        LOG.warning("Failpoint %s waits for %s s", name, seconds)
        time.sleep(seconds)

    return wait


_ACTIONS: dict[str, Action] = {"kill": _kill, "stop": _stop, "drop": _drop, "log": _log}
