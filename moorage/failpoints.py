"""Failpoints: named places in the code at which a test kills, stops or delays a process, or drops a message.

They are at the points where a crash makes a difference. They are in the shared mechanisms and not in each message or
step, so that a new message or step has them without extra code. A name consists of the thread's place and the event:

* ``serve.<topic>.<method>``: in a handler. ``begin``; ``reply`` when it is done, before its answer is sent.
* ``step.<kind>.<step>``: in a step of an operation. ``begin``; ``done`` before its result is recorded.
* at these places, and in threads without a place: ``commit`` and ``committed`` around each COMMIT of a write,
  ``send.<topic>.<method>`` and ``answered.<topic>.<method>`` around each call;
* on a host, ``spawn`` and ``spawned``, ``destroy`` and ``destroyed``, ``order.<action>`` and ``ordered.<action>``
  around the calls of its driver.

For example, a scheduler that is about to commit a claim is at ``serve.scheduler.select_destinations.commit``.

They are off, and cost one comparison with None each, unless ``MOORAGE_FAILPOINTS`` is set when the `moorage` command
starts. The variable holds one or more ``name=action`` separated by commas; ``*`` in a name matches anything. An action
applies every time, or, if ``@n`` follows it, only the n-th time. The actions are:

``kill``            SIGKILL to this process
``stop``            SIGSTOP to this process, until it receives SIGCONT
``wait:<seconds>``  sleep
``drop``            the message is lost (only at ``reply``, ``send`` and ``answered``)
``log``             a line in the log; tests list the failpoints by it
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
    """Drop a message here. It is not an ``Exception``, so that no code on its way handles it as an error."""


# A process is killed or stopped as a whole, so the reaction is a global variable.
_reaction: Action | None = None
_is_observed = False
_place: ContextVar[str] = ContextVar("moorage_failpoints_place", default="")
_NOTHING: AbstractContextManager[None] = nullcontext()


# --- In the mechanisms ----------------------------------------------------------------------------------------------


def reached(event: str, *words: str) -> None:
    """Pass the failpoint of this event at the current thread's place.

    :raises Dropped: the message that is about to be sent, or has arrived, must be dropped.
    """
    if _reaction is not None:
        _reaction(".".join(filter(None, (_place.get(), event, *words))))


def are_observed() -> bool:
    """Return whether a test of this process observes at which failpoints each request arrives."""
    return _is_observed


def are_armed() -> bool:
    """Return whether the failpoints of this process are switched on."""
    return _reaction is not None


def within(*place: str) -> AbstractContextManager[None]:
    """Set the place of the current thread until exit."""
    return _NOTHING if _reaction is None else _entered(".".join(place))


@contextmanager
def _entered(place: str) -> Iterator[None]:
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


def declare(*place: str) -> None:
    """Log that this place exists, whether or not a thread ever reaches it."""
    if _reaction is not None:
        LOG.info("There is a place %s", ".".join(place))


# --- Switching on ---------------------------------------------------------------------------------------------------


def switch_on(specification: str) -> None:
    """Arm the failpoints of this process by a specification; an empty one disarms all.

    :raises ConfigurationError: the specification cannot be parsed.
    """
    global _reaction
    armed = [_parse(part.strip()) for part in specification.split(",") if part.strip()]
    _reaction = _reaction_of(armed) if armed else None
    if armed:
        LOG.warning("Failpoints are on, which is for tests alone: %s", specification)


@contextmanager
def observed(reaction: Action) -> Iterator[None]:
    """Call ``reaction`` with the name of each failpoint that is passed, until exit; for tests in one process."""
    global _reaction, _is_observed
    before, _reaction, _is_observed = (_reaction, _is_observed), reaction, True
    try:
        yield
    finally:
        _reaction, _is_observed = before


@dataclass
class _Armed:
    """The action at the failpoints that match a pattern."""

    pattern: re.Pattern[str]
    action: Action
    #: The number of the pass at which the action is carried out; None for every pass.
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
            # To advance the counter is atomic, so that threads can share it.
            if one.pattern.fullmatch(name) and (one.turn is None or next(one.times) == one.turn):
                one.action(name)

    return react


def _sending(number: signal.Signals, verb: str) -> Action:
    def send(name: str) -> None:
        LOG.warning("Failpoint %s %s", name, verb)
        # Send the signal to this thread: otherwise the thread would continue until the signal reaches the process.
        signal.pthread_kill(threading.get_ident(), number)

    return send


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


_ACTIONS: dict[str, Action] = {
    "kill": _sending(signal.SIGKILL, "kills"),
    "stop": _sending(signal.SIGSTOP, "stops"),
    "drop": _drop,
    "log": _log,
}
