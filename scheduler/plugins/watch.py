"""Plug-ins that do not come to an end: the decision is given up, its thread is left behind, and the plug-in is named.

Python cannot end a thread. So a decision that asks plug-ins of others runs in a thread of its own, and the thread that
has to answer waits for it: no longer than one question to one plug-in may take. A thread that is given up can do
nothing any more. It is interrupted, which ends a loop in Python and not a call into C. If its plug-in ever answers, the
first thing that the thread does is to end. While too many threads hang in one plug-in, it is not asked at all.
"""

import ctypes
import logging
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from moorage import errors

LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: Threads that may hang in one plug-in before it is not asked any more; each keeps its memory. Arbitrary.
_MAX_HANGING = 4
_STOP_SECONDS = 2.0
#: A question that takes longer is noted. Arbitrary: a whole decision takes a hundredth of that.
SLOW_SECONDS = 0.5


class _GivenUp(BaseException):
    """Ends a thread whose decision was given up; no plug-in that catches ``Exception`` keeps it from that."""


class _Question:
    """One question to one plug-in."""

    __slots__ = ("_undecided", "began", "plugin")

    def __init__(self, plugin: str, began: float) -> None:
        self.plugin = plugin
        self.began: float | None = began
        # Whoever takes it out decides: the plug-in has answered, or it is given up. To take it out is atomic.
        self._undecided = [True]

    def decide(self) -> bool:
        """Return whether it was undecided until now."""
        try:
            return self._undecided.pop()
        except IndexError:
            return False


class _Decision(Generic[T]):
    """Work that asks plug-ins, in a thread that can be given up."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.context: Context = copy_context()
        self.ended = threading.Event()
        self.question: _Question | None = None
        self.thread_id = 0
        self.given_up: str | None = None
        self.answer: T | None = None
        self.fault: BaseException | None = None

    def run(self) -> None:
        """Do the work, and keep what comes of it."""
        self.thread_id = threading.get_ident()
        _LOCAL.decision = self
        try:
            self.answer = self.context.run(self.work)
        except BaseException as fault:  # noqa: BLE001 - handed to the thread that waits
            self.fault = fault
        finally:
            _LOCAL.decision = None
            self.ended.set()


class _Local(threading.local):
    decision: _Decision[Any] | None = None


_LOCAL = _Local()
#: The plug-ins that are not asked, because a decision on the same request was given up for them.
_LEFT_OUT: ContextVar[frozenset[str]] = ContextVar("plug-ins left out", default=frozenset())


class PluginWatchdog:
    """Times the questions to plug-ins, and gives up decisions in which one does not come to an end.

    :param seconds: how long one question to one plug-in may take; 0 for as long as it likes.
    :param met: is called with each plug-in that was given up, as ``filter rack``.
    """

    def __init__(
        self,
        seconds: float,
        met: Callable[[str], None] = lambda _plugin: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._met = met
        self._clock = clock
        self._lock = threading.Lock()
        self._hanging: Counter[str] = Counter()
        self._longest: dict[str, float] = {}
        self._idle: list[SimpleQueue[_Decision[Any] | None]] = []
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], T], *, skip: bool = False) -> T:
        """Return what some work returns that asks plug-ins.

        :param skip: whether it is done once more where a plug-in does not come to an end, which is then not asked.
        :raises SlowPlugin: a plug-in has not come to an end.
        """
        try:
            return self._run(work)
        except errors.SlowPlugin as slow:
            plugin = f"{slow.plugin} {slow.name}"
            if not skip or plugin in (left_out := _LEFT_OUT.get()):
                raise
        token = _LEFT_OUT.set(left_out | {plugin})
        try:
            return self.run(work, skip=True)
        finally:
            _LEFT_OUT.reset(token)

    def _run(self, work: Callable[[], T]) -> T:
        if not self._seconds:
            return work()
        decision = _Decision(work)
        with self._lock:
            inbox = self._idle.pop() if self._idle else self._new_thread()
        inbox.put(decision)
        while not decision.ended.wait(self._left(decision.question)):
            question = decision.question
            if question is not None and self._left(question) <= 0 and question.decide():
                self._give_up(decision, question.plugin)
                raise self._slow(question.plugin)
        if decision.fault is not None:
            raise decision.fault
        return decision.answer  # type: ignore[return-value]

    @contextmanager
    def asking(self, plugin: str) -> Iterator[None]:
        """Ask a plug-in one question.

        :param plugin: as ``filter rack``.
        :raises SlowPlugin: it is not asked.
        """
        if self._hanging[plugin] >= _MAX_HANGING or plugin in _LEFT_OUT.get():
            raise self._slow(plugin)
        decision = _LOCAL.decision
        began = self._clock()
        question = _Question(plugin, began)
        if decision is not None:
            decision.question = question
        try:
            yield
        finally:
            if not question.decide():
                raise _GivenUp
            if decision is not None:
                decision.question = None
            self._note(plugin, self._clock() - (question.began or began))

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Do for a plug-in what it cannot be blamed for, as reading from the database."""
        question = _LOCAL.decision.question if _LOCAL.decision is not None else None
        if question is None or question.began is None:
            yield
            return
        spent = self._clock() - question.began
        question.began = None
        try:
            yield
        finally:
            question.began = self._clock() - spent

    def slow(self) -> dict[str, float]:
        """Return the longest time that a question to each slow plug-in has taken, in seconds."""
        with self._lock:
            return dict(sorted(self._longest.items()))

    def stop(self) -> None:
        """End the threads that wait for work; those that hang end with the process."""
        with self._lock:
            idle, self._idle = self._idle, []
            threads, hanging = self._threads, +self._hanging
        for inbox in idle:
            inbox.put(None)
        if not hanging:
            for thread in threads:
                thread.join(_STOP_SECONDS)

    def _left(self, question: _Question | None) -> float:
        began = question.began if question is not None else None
        # Of a question that begins meanwhile the time is looked at again when this one is over.
        return self._seconds if began is None else began + self._seconds - self._clock()

    def _slow(self, plugin: str) -> errors.SlowPlugin:
        kind, _, name = plugin.rpartition(" ")
        return errors.SlowPlugin(plugin=kind, name=name, seconds=self._seconds)

    def _note(self, plugin: str, seconds: float) -> None:
        if seconds >= SLOW_SECONDS:
            with self._lock:
                self._longest[plugin] = max(seconds, self._longest.get(plugin, 0.0))

    def _give_up(self, decision: _Decision[Any], plugin: str) -> None:
        with self._lock:
            self._hanging[plugin] += 1
            self._longest[plugin] = max(self._seconds, self._longest.get(plugin, 0.0))
        frame = sys._current_frames().get(decision.thread_id)  # noqa: SLF001 - the documented way to another stack
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        LOG.error("The %s has not answered within %s s, and is at\n%s", plugin, self._seconds, stack.rstrip())
        self._met(plugin)
        decision.given_up = plugin
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(decision.thread_id), ctypes.py_object(_GivenUp))

    def _new_thread(self) -> "SimpleQueue[_Decision[Any] | None]":
        inbox: SimpleQueue[_Decision[Any] | None] = SimpleQueue()
        thread = threading.Thread(target=self._work, args=(inbox,), daemon=True, name="decision")
        self._threads = [each for each in self._threads if each.is_alive()]
        thread.start()
        self._threads.append(thread)
        return inbox

    def _work(self, inbox: "SimpleQueue[_Decision[Any] | None]") -> None:
        """Decide again and again; a thread whose decision was given up has an interruption coming, and ends."""
        decision: _Decision[Any] | None = None
        try:
            while (decision := inbox.get()) is not None:
                decision.run()
                if isinstance(decision.fault, _GivenUp):
                    return
                with self._lock:
                    self._idle.append(inbox)
        except _GivenUp:
            # It came only after the plug-in had ended.
            return
        finally:
            if decision is not None and decision.given_up is not None:
                with self._lock:
                    self._hanging[decision.given_up] -= 1
