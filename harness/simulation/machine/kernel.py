"""The kernel of a simulation: tasks in one thread of the machine, run in a seeded order, with a virtual clock.

A task is a greenlet in place of a thread, and belongs to a simulated process. It runs until it waits or passes a
switching point. The next task is drawn from the runnable ones. If none is runnable, the clock jumps to the time at
which the first task wakes, so that waiting takes no real time. A process that crashes never runs again, not even its
``finally`` blocks.
"""

import heapq
import random
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import greenlet  # type: ignore[import-untyped]

#: The process of code that is not part of the cloud: the callers and the judge.
OUTSIDE = "outside"

Run = Callable[[], object]
#: The folder of a cloud's files, which has another name in each run.
_FOLDER = re.compile(r"[^\s\"']*/moorage-\w+/")


class Deadlock(BaseException):
    """No task can run, and none waits for a time. Not an ``Exception``, so that no code of the cloud handles it."""


@dataclass(slots=True, eq=False, repr=False)
class Task:
    """A thread of a simulated process."""

    number: int
    process: str
    name: str
    green: Any = None
    #: The number of the timer that wakes the task; 0 if there is no timer.
    due: int = 0
    was_woken: bool = False
    #: The lock that :class:`threading.Thread` waits for at a join.
    sentinel: Any = None
    #: The locks that the task holds and that other processes made.
    shared: dict[Any, None] = field(default_factory=dict)
    local_values: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<task {self.number} {self.name} of {self.process}>"


class Kernel:
    """Runs tasks. The main greenlet of the machine's thread is the first task, in process ``outside``."""

    def __init__(self) -> None:
        #: Tasks of earlier histories. Releasing one would run its ``finally`` blocks during the next history.
        self._former: list[list[Task]] = []
        self._ready: list[Task] = []
        self._waiting: dict[int, Task] = {}
        self._crashed: list[Task] = []
        self._frozen: dict[str, list[Task]] = {}
        self.reset(0)

    def reset(self, seed: object) -> None:
        """Start again, with the calling greenlet as the only task, and with an order of tasks by a seed."""
        self.chance = random.Random(f"{seed}/kernel")
        self.now = 0.0
        self._tasks = 0
        self._timers_set = 0
        self._former += [self._ready, list(self._waiting.values()), self._crashed, *self._frozen.values()]
        self._ready = []
        self._timers: list[tuple[float, int, Task]] = []
        self._waiting = {}
        #: Tasks of crashed processes: never run, and never released, because that would run their ``finally`` blocks.
        self._crashed = []
        self.dead: set[str] = set()
        #: The runnable tasks of each paused process.
        self._frozen = {}
        self.main = self.current = self._new(OUTSIDE, "main")
        self.main.green = greenlet.getcurrent()
        #: The probability of a switch when a task takes a free lock.
        self.preemption = 0.02
        self._trace = 0
        self.switches = 0
        self.is_atomic = 0
        self._points: dict[str, tuple[int, Run]] = {}

    def reseed(self, seed: object) -> None:
        """Let another seed determine the order from now on, and begin a new trace; all tasks continue."""
        self.chance = random.Random(f"{seed}/kernel")
        self._trace = 0
        self.switches = 0

    # --- Tasks --------------------------------------------------------------------------------------------------------

    def start(self, run: Run, process: str | None = None, name: str = "task") -> Task:
        """Start a task, by default in the process of the calling task; it runs at a later switch."""
        process = self.current.process if process is None else process
        task = self._new(process, name)

        def body(*_: object) -> None:
            try:
                run()
                if task.sentinel is not None:
                    task.sentinel.release()
            except BaseException:
                # The error is raised where the main task waits, because that is the greenlet's parent.
                self._go_on_with_main()
                raise
            # When a greenlet ends, its parent continues.
            self.current = self._next()
            task.green.parent = self.current.green

        task.green = greenlet.greenlet(body, self.main.green)
        if process in self.dead:
            self._crashed.append(task)
        else:
            self._make_ready(task)
        return task

    def kill(self, process: str) -> None:
        """End all tasks of a process at once; the calling task ends at its next switch."""
        self.dead.add(process)
        ended = [task for task in self._all() if task.process == process]
        # The tasks of a paused process may hold locks as well.
        ended += self._frozen.pop(process, ())
        self._crashed += ended
        self._ready = [task for task in self._ready if task.process != process]
        for task in ended:
            self._waiting.pop(task.number, None)
            task.due = 0
        self._points.pop(process, None)
        for task in ended:
            for lock in list(task.shared):
                lock.release()

    def revive(self, process: str) -> None:
        """Let tasks of this process run again, if they are started from now on."""
        self.dead.discard(process)

    def freeze(self, process: str) -> None:
        """Pause all tasks of a process until :meth:`thaw`; events that they wait for still happen."""
        still = self._frozen.setdefault(process, [])
        still += [task for task in self._ready if task.process == process]
        self._ready = [task for task in self._ready if task.process != process]

    def thaw(self, process: str) -> None:
        """Resume a paused process."""
        self._ready += self._frozen.pop(process, ())

    @property
    def frozen(self) -> list[str]:
        """The paused processes."""
        return list(self._frozen)

    def at_point(self, process: str, points: int, do: Run) -> None:
        """Call ``do`` after this process has passed ``points`` more switching points; this replaces an earlier call."""
        self._points[process] = (points, do)

    def forget_points(self) -> None:
        """Cancel all calls at switching points."""
        self._points.clear()

    # --- Switching ----------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Let other tasks run, perhaps: a switching point."""
        if self.is_atomic:
            return
        self._count_down()
        if self.current.process not in self.dead:
            if not self._ready and not self._points and not self._frozen:
                return
            self._make_ready(self.current)
        self._switch()

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass for the calling task."""
        if self.is_atomic:
            return
        if seconds <= 0:
            self.pause()
        else:
            self.block(self.now + seconds)

    def block(self, until: float | None = None) -> bool:
        """Wait until the calling task is woken; return False if ``until`` came first."""
        if self.is_atomic:
            raise RuntimeError("what is not to be interrupted waits for something")
        self._count_down()
        task = self.current
        task.was_woken = False
        if task.process not in self.dead:
            self._waiting[task.number] = task
            if until is not None:
                self._timers_set += 1
                task.due = self._timers_set
                heapq.heappush(self._timers, (until, task.due, task))
        self._switch()
        return task.was_woken

    def wake(self, task: Task) -> None:
        """Let a waiting task run again."""
        # A task of an earlier history is woken when its lock is collected: it must not wake the task with the same
        # number.
        if self._waiting.get(task.number) is task:
            del self._waiting[task.number]
            task.was_woken, task.due = True, 0
            self._make_ready(task)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Pass no switching point until exit."""
        self.is_atomic += 1
        try:
            yield
        finally:
            self.is_atomic -= 1

    def note(self, text: str) -> None:
        """Add an event to the trace: equal traces mean equal histories."""
        if "/moorage-" in text:
            text = _FOLDER.sub("", text)
        when = b"%d %d " % (self.now * 1e6, self.current.number)
        self._trace = zlib.crc32(text.encode(), zlib.crc32(when, self._trace))

    @property
    def trace(self) -> str:
        """The checksum of all switches and noted events."""
        return f"{self._trace:08x}"

    def _new(self, process: str, name: str) -> Task:
        self._tasks += 1
        return Task(self._tasks, process, name)

    def _all(self) -> list[Task]:
        return [*self._ready, *self._waiting.values(), self.current]

    def _count_down(self) -> None:
        if self._points and (armed := self._points.get(self.current.process)) is not None:
            left, do = armed
            if left <= 1:
                del self._points[self.current.process]
                do()
            else:
                self._points[self.current.process] = (left - 1, do)

    def _make_ready(self, task: Task) -> None:
        if self._frozen and (still := self._frozen.get(task.process)) is not None:
            still.append(task)
        else:
            self._ready.append(task)

    def _switch(self) -> None:
        """Run the next task; return when it is the calling task's turn again."""
        following = self._next()
        if following is not self.current:
            self.current = following
            following.green.switch()

    def _next(self) -> Task:
        """Take the next of the runnable tasks; if there is none, let time pass."""
        ready = self._ready
        while not ready:
            if not self._timers:
                held = ", ".join(map(repr, self._waiting.values()))
                self._go_on_with_main()
                self.main.green.throw(Deadlock(f"nobody can go on: {held}"))
            at, number, task = heapq.heappop(self._timers)
            if task.due != number:
                continue
            task.due = 0
            del self._waiting[task.number]
            self.now = max(self.now, at)
            self._make_ready(task)
        if len(ready) == 1:
            following = ready.pop()
        else:
            chosen = int(self.chance.random() * len(ready))
            following, ready[chosen] = ready[chosen], ready[-1]
            ready.pop()
        self.switches += 1
        self._trace = zlib.crc32(b"%d" % following.number, self._trace)
        return following

    def _go_on_with_main(self) -> None:
        self._waiting.pop(self.main.number, None)
        self.main.due = 0
        self._ready = [task for task in self._ready if task is not self.main]
        self.current = self.main


#: The machine's thread is the only one, so there is one kernel.
KERNEL = Kernel()
