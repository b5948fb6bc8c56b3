"""The kernel of a simulation: tasks in one thread of the machine, taken in a seeded order, under a virtual clock.

A task is a greenlet in place of a thread, and belongs to a simulated process. It runs until it waits for something or
passes a switching point; which task runs next is drawn from those that can. Where none can, the clock jumps to the time
at which the first of them wakes, so that no time is spent on waiting. A process that crashes never runs again, not even
its ``finally`` blocks.
"""

import heapq
import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import greenlet  # type: ignore[import-untyped]

#: The process of what is no part of the cloud: the callers and the judge.
OUTSIDE = "outside"

Run = Callable[[], object]


class Deadlock(BaseException):
    """No task can run, and none waits for a time. Not an ``Exception``: no code of the cloud may handle it."""


class Task:
    """A thread of a simulated process."""

    __slots__ = ("due", "green", "local_values", "name", "number", "process", "sentinel", "shared", "was_woken")

    def __init__(self, number: int, process: str, name: str) -> None:
        self.number = number
        self.process = process
        self.name = name
        self.green: Any = None
        #: The number of the timer that wakes it; 0 while it waits for none.
        self.due = 0
        self.was_woken = False
        #: The lock that :class:`threading.Thread` waits for at a join.
        self.sentinel: Any = None
        #: The locks it holds that other processes made.
        self.shared: dict[Any, None] = {}
        self.local_values: dict[int, dict[str, Any]] = {}

    def __repr__(self) -> str:
        return f"<task {self.number} {self.name} of {self.process}>"


class Kernel:
    """Runs tasks. The main greenlet of the machine's thread is the first one, of process ``outside``."""

    def __init__(self) -> None:
        #: Tasks of former histories. To release one would run its ``finally`` blocks in the midst of the next history.
        self._former: list[list[Task]] = []
        self._ready: list[Task] = []
        self._waiting: dict[int, Task] = {}
        self._crashed: list[Task] = []
        self._frozen: dict[str, list[Task]] = {}
        self.reset(0)

    def reset(self, seed: object) -> None:
        """Begin anew, with the calling greenlet as the only task.

        :param seed: decides on the order.
        """
        self.chance = random.Random(f"{seed}/kernel")
        self.now = 0.0
        self._tasks = 0
        self._timers_set = 0
        self._former += [self._ready, list(self._waiting.values()), self._crashed, *self._frozen.values()]
        self._ready = []
        self._timers: list[tuple[float, int, Task]] = []
        self._waiting = {}
        #: What a crash has left: never run, and never released, for that would run their ``finally`` blocks.
        self._crashed = []
        self.dead: set[str] = set()
        #: By process that stands still, its tasks that could run.
        self._frozen = {}
        self.main = self.current = self._new(OUTSIDE, "main")
        self.main.green = greenlet.getcurrent()
        #: How likely a switch is where a lock is taken that is free.
        self.preemption = 0.02
        self._trace = 0
        self.switches = 0
        self.is_atomic = 0
        self._points: dict[str, tuple[int, Run]] = {}

    def reseed(self, seed: object) -> None:
        """Let another seed decide on the order from now on, and begin the trace anew; all tasks go on."""
        self.chance = random.Random(f"{seed}/kernel")
        self._trace = 0
        self.switches = 0

    # --- Tasks --------------------------------------------------------------------------------------------------------

    def start(self, run: Run, process: str | None = None, name: str = "task") -> Task:
        """Start a task, by default in the process of the calling one; it runs at some later switch."""
        process = self.current.process if process is None else process
        task = self._new(process, name)

        def body(*_: object) -> None:
            try:
                run()
                if task.sentinel is not None:
                    task.sentinel.release()
            except BaseException:
                # It is raised where the main task waits, which is the greenlet's parent.
                self._go_on_with_main()
                raise
            # A greenlet that ends goes on with its parent.
            self.current = self._next()
            task.green.parent = self.current.green

        task.green = greenlet.greenlet(body, self.main.green)
        if process in self.dead:
            self._crashed.append(task)
        else:
            self._make_ready(task)
        return task

    def kill(self, process: str) -> None:
        """End all tasks of a process where they stand; the calling one ends at its next switch."""
        self.dead.add(process)
        ended = [task for task in self._all() if task.process == process]
        # Those of one that stood still may hold locks as well.
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
        """Let tasks of this process run again: of those that are started from now on."""
        self.dead.discard(process)

    def freeze(self, process: str) -> None:
        """Let no task of a process run until :meth:`thaw`; what it waits for comes meanwhile."""
        still = self._frozen.setdefault(process, [])
        still += [task for task in self._ready if task.process == process]
        self._ready = [task for task in self._ready if task.process != process]

    def thaw(self, process: str) -> None:
        """Let a process run again that stands still."""
        self._ready += self._frozen.pop(process, ())

    @property
    def frozen(self) -> list[str]:
        """The processes that stand still."""
        return list(self._frozen)

    def at_point(self, process: str, points: int, do: Run) -> None:
        """Call ``do`` when this process has passed so many more switching points; what was to come before is not."""
        self._points[process] = (points, do)

    def forget_points(self) -> None:
        """Do nothing more at any switching point."""
        self._points.clear()

    # --- Switching ----------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Let others run, perhaps: a switching point."""
        if self.is_atomic:
            return
        self._count_down()
        if self.current.process not in self.dead:
            if not self._ready and not self._points and not self._frozen:
                return
            self._make_ready(self.current)
        self._switch()

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass."""
        if self.is_atomic:
            return
        if seconds <= 0:
            self.pause()
        else:
            self.block(self.now + seconds)

    def block(self, until: float | None = None) -> bool:
        """Wait until the calling task is woken; return False if the time came first."""
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
        # One of a former history, which is woken when what it waits for is collected, must not wake its namesake.
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
        """Add to the trace what has happened: equal traces are equal histories."""
        when = b"%d %d " % (self.now * 1e6, self.current.number)
        self._trace = zlib.crc32(text.encode(), zlib.crc32(when, self._trace))

    @property
    def trace(self) -> str:
        """The check sum of all switches and of all that was noted."""
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
        """Run the next task; return when the calling one has its turn again."""
        following = self._next()
        if following is not self.current:
            self.current = following
            following.green.switch()

    def _next(self) -> Task:
        """Take the next task from those that can run; where none can, let time pass."""
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


#: There is one machine's thread, and so one kernel.
KERNEL = Kernel()
