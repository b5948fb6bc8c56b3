"""A watchdog for plug-ins that do not return: the decision is abandoned with its thread, and the plug-in is named.

Python cannot kill a thread. So a decision that calls foreign plug-ins runs in a worker thread. The thread that must
answer waits for it, but not longer than the time limit of one call of one plug-in. Then the worker thread is abandoned
and can no longer change anything. An exception is raised in it, which ends a loop in Python but not a call into C. If
its plug-in ever returns, the thread ends at once. While too many threads hang in one plug-in, the plug-in is not called
at all.
"""

import ctypes
import gc
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from queue import SimpleQueue
from types import FrameType
from typing import Any, Generic, TypeVar

from moorage import errors

LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: The number of threads hanging in one plug-in at which it is no longer called; each keeps its memory. Arbitrary.
_MAX_HANGING = 4
_STOP_SECONDS = 2.0
#: A call that takes at least this long is recorded as slow. Arbitrary: a whole decision takes a hundredth of that.
SLOW_SECONDS = 0.5


_FRAMES_LOCK = threading.Lock()


def current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by thread id.

    The interpreter allocates memory for them while it holds the lock on its list of threads. If that starts a garbage
    collection, and a finalizer lets another thread run that starts or ends, all threads of the process deadlock
    (CPython issue 106883). So garbage collection is disabled meanwhile.
    """
    with _FRAMES_LOCK:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()  # noqa: SLF001 - the documented way to the stacks of other threads
        finally:
            if collects:
                gc.enable()


class _Abandoned(BaseException):
    """Ends a thread whose decision was abandoned; a plug-in that catches ``Exception`` does not stop it."""


class _PluginCall:
    __slots__ = ("_undecided", "began", "plugin")

    def __init__(self, plugin: str, began: float) -> None:
        self.plugin = plugin
        self.began: float | None = began
        # The thread that pops the item decides: the plug-in has returned, or the call is abandoned. A pop is atomic.
        self._undecided = [True]

    def decide(self) -> bool:
        """Decide the outcome of the call; return False if the other thread has done so before."""
        try:
            return self._undecided.pop()
        except IndexError:
            return False


class _Job(Generic[T]):
    """Work that calls plug-ins, in a thread that can be abandoned."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.context: Context = copy_context()
        self.ended = threading.Event()
        self.call: _PluginCall | None = None
        #: The thread that does the work, once it has begun.
        self.thread = threading.current_thread()
        self.answer: T | None = None
        self.fault: BaseException | None = None

    def run(self) -> None:
        """Do the work, and keep its result or its exception."""
        self.thread = threading.current_thread()
        _LOCAL.job = self
        try:
            self.answer = self.context.run(self.work)
        except BaseException as fault:  # noqa: BLE001 - handed to the thread that waits
            self.fault = fault
        finally:
            _LOCAL.job = None
            self.ended.set()


class _Local(threading.local):
    job: _Job[Any] | None = None


_LOCAL = _Local()
#: The plug-ins to skip, because a decision on the same request was abandoned for them.
_SKIPPED: ContextVar[frozenset[str]] = ContextVar("skipped plug-ins", default=frozenset())


class PluginWatchdog:
    """Times the calls of plug-ins, and abandons decisions in which a plug-in does not return.

    :param seconds: the time limit of one call of one plug-in; 0 for no limit.
    :param on_timeout: called with the name of each plug-in that has not returned, as ``filter rack``.
    """

    def __init__(self, seconds: float, on_timeout: Callable[[str], None] = lambda _plugin: None) -> None:
        self._seconds = seconds
        self._on_timeout = on_timeout
        self._lock = threading.Lock()
        #: The threads whose decisions were abandoned, by plug-in; some of them may have ended since.
        self._hanging: dict[str, list[threading.Thread]] = {}
        self._longest: dict[str, float] = {}
        self._idle: list[SimpleQueue[_Job[Any] | None]] = []
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], T], *, skip: bool = False) -> T:
        """Return the result of work that calls plug-ins.

        :param skip: whether to do the work again without a plug-in that has not returned.
        :raises SlowPlugin: a plug-in has not returned in time.
        """
        try:
            return self._run(work)
        except errors.SlowPlugin as slow:
            plugin = f"{slow.plugin} {slow.name}"
            if not skip or plugin in (skipped := _SKIPPED.get()):
                raise
        token = _SKIPPED.set(skipped | {plugin})
        try:
            return self.run(work, skip=True)
        finally:
            _SKIPPED.reset(token)

    def _run(self, work: Callable[[], T]) -> T:
        if not self._seconds:
            return work()
        job = _Job(work)
        with self._lock:
            inbox = self._idle.pop() if self._idle else self._new_thread()
        inbox.put(job)
        # Wait for the end of the work, but wake up when the present call has used up its time.
        while not job.ended.wait(self._left(job.call)):
            call = job.call
            # The call may have returned between the wake-up and this check: then the work goes on.
            if call is not None and self._left(call) <= 0 and call.decide():
                self._abandon(job, call.plugin)
                raise self._slow(call.plugin)
        if job.fault is not None:
            raise job.fault
        return job.answer  # type: ignore[return-value]

    @contextmanager
    def timed(self, plugin: str) -> Iterator[None]:
        """Time one call of a plug-in while the context lasts.

        :param plugin: its name, as ``filter rack``.
        :raises SlowPlugin: the plug-in hangs in too many threads already, or is to be skipped.
        :raises RuntimeError: the plug-in has raised something that no handler of a decision or of a message catches,
            such as ``asyncio.CancelledError``.
        """
        if len(self._hanging_in(plugin)) >= _MAX_HANGING or self.is_left_out(plugin):
            raise self._slow(plugin)
        job = _LOCAL.job
        began = time.monotonic()
        call = _PluginCall(plugin, began)
        if job is not None:
            job.call = call
        try:
            yield
        except (Exception, SystemExit, KeyboardInterrupt, GeneratorExit, _Abandoned):
            raise
        except BaseException as fault:
            raise RuntimeError(f"it has raised {type(fault).__name__}, which is no Exception") from fault
        finally:
            # The waiting thread has abandoned this one: it must not go on with the decision.
            if not call.decide():
                raise _Abandoned
            if job is not None:
                job.call = None
            self._record(plugin, time.monotonic() - (call.began or began))

    def is_left_out(self, plugin: str) -> bool:
        """Return whether the present decision runs again without this plug-in, which has not returned in time."""
        return plugin in _SKIPPED.get()

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Stop the clock of the present call while the context lasts, as for a read from the database."""
        call = _LOCAL.job.call if _LOCAL.job is not None else None
        if call is None or call.began is None:
            yield
            return
        spent = time.monotonic() - call.began
        call.began = None
        try:
            yield
        finally:
            call.began = time.monotonic() - spent

    def slow(self) -> dict[str, float]:
        """Return the longest call of each slow plug-in, in seconds."""
        with self._lock:
            return dict(sorted(self._longest.items()))

    def stop(self) -> None:
        """End the idle threads; those that hang end with the process."""
        with self._lock:
            idle, self._idle = self._idle, []
            threads, hanging = self._threads, any(map(self._hanging_in, self._hanging))
        for inbox in idle:
            inbox.put(None)
        if not hanging:
            for thread in threads:
                thread.join(_STOP_SECONDS)

    def _hanging_in(self, plugin: str) -> list[threading.Thread]:
        return [thread for thread in self._hanging.get(plugin, ()) if thread.is_alive()]

    def _left(self, call: _PluginCall | None) -> float:
        """Return the seconds that a call has left; the whole limit without a call, or while its clock is stopped."""
        began = call.began if call is not None else None
        # A call that begins during the wait is checked when this time is over.
        return self._seconds if began is None else began + self._seconds - time.monotonic()

    def _slow(self, plugin: str) -> errors.SlowPlugin:
        kind, _, name = plugin.rpartition(" ")
        return errors.SlowPlugin(plugin=kind, name=name, seconds=self._seconds)

    def _record(self, plugin: str, seconds: float) -> None:
        if seconds >= SLOW_SECONDS:
            with self._lock:
                self._longest[plugin] = max(seconds, self._longest.get(plugin, 0.0))

    def _abandon(self, job: _Job[Any], plugin: str) -> None:
        with self._lock:
            self._hanging[plugin] = [*self._hanging_in(plugin), job.thread]
            self._longest[plugin] = max(self._seconds, self._longest.get(plugin, 0.0))
        thread_id = job.thread.ident or 0
        frame = current_frames().get(thread_id)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        LOG.error("The %s has not answered within %s s, and is at\n%s", plugin, self._seconds, stack.rstrip())
        self._on_timeout(plugin)
        # The plug-in may have returned meanwhile, and a new thread may have the id of the thread that has ended.
        if job.thread.is_alive():
            # The only way to interrupt another thread: the exception is raised at its next bytecode.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(_Abandoned))

    def _new_thread(self) -> "SimpleQueue[_Job[Any] | None]":
        inbox: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        thread = threading.Thread(target=self._work, args=(inbox,), daemon=True, name="decision")
        self._threads = [each for each in self._threads if each.is_alive()]
        thread.start()
        self._threads.append(thread)
        return inbox

    def _work(self, inbox: "SimpleQueue[_Job[Any] | None]") -> None:
        """Run decisions from the inbox until it gets None; end after a decision that was abandoned."""
        try:
            while (job := inbox.get()) is not None:
                job.run()
                # Do not reuse this thread: the exception from `_abandon` may still be pending.
                if isinstance(job.fault, _Abandoned):
                    return
                with self._lock:
                    self._idle.append(inbox)
        except _Abandoned:
            # The exception was raised only after the plug-in had returned.
            return
