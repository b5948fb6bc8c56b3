"""Locks, thread-local values and clocks for the kernel's tasks: the basis of the standard library's threads."""

import itertools
from collections.abc import Callable
from typing import Any, Self

from harness.simulation.machine.kernel import KERNEL, Task

_LOCALS = itertools.count(1)


class Lock:
    """A lock of tasks, in place of ``_thread.lock``. The next holder is drawn from the waiting tasks.

    Real processes share no locks. Simulated ones do, because they share the modules. When a process crashes, the locks
    that it holds and that other processes made are released.
    """

    __slots__ = ("__weakref__", "_holder", "_made_by", "_waiting")

    def __init__(self) -> None:
        self._made_by = KERNEL.current.process
        self._holder: Task | None = None
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; return False if it did not come free in time."""
        _maybe_pause()
        if self._holder is None:
            self._hold(KERNEL.current)
            return True
        if not blocking:
            return False
        until = None if timeout < 0 else KERNEL.now + timeout
        while True:
            task = KERNEL.current
            self._waiting.append(task)
            is_woken = KERNEL.block(until)
            if not self.locked():
                self._forget(task)
                self._hold(task)
                return True
            if not is_woken:
                self._forget(task)
                return False

    def release(self) -> None:
        """Release the lock; any task may do so."""
        if self._holder is None:
            raise RuntimeError("release unlocked lock")
        if self._holder.shared:
            self._holder.shared.pop(self, None)
        self._holder = None
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for task in waiting:
                KERNEL.wake(task)

    def locked(self) -> bool:
        """Return whether a task holds the lock."""
        return self._holder is not None

    def _hold(self, task: Task) -> None:
        self._holder = task
        if self._made_by != task.process:
            task.shared[self] = None

    def _forget(self, task: Task) -> None:
        if task in self._waiting:
            self._waiting.remove(task)

    def _at_fork_reinit(self) -> None:
        self._holder, self._waiting = None, []

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock:
    """A lock that its holder can take again, in place of ``threading.RLock``."""

    __slots__ = ("__weakref__", "_depth", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; return False if it did not come free in time."""
        if self._lock._holder is KERNEL.current:  # noqa: SLF001
            self._depth += 1
            return True
        if self._lock.acquire(blocking, timeout):
            self._depth = 1
            return True
        return False

    def release(self) -> None:
        """Release the lock once."""
        if self._lock._holder is not KERNEL.current:  # noqa: SLF001
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if not self._depth:
            self._lock.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    # The methods that threading.Condition needs.

    def _is_owned(self) -> bool:
        return self._lock._holder is KERNEL.current  # noqa: SLF001

    def _release_save(self) -> int:
        depth, self._depth = self._depth, 0
        self._lock.release()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        self._lock.acquire()
        self._depth = depth

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()  # noqa: SLF001
        self._depth = 0


class Local:
    """Values that each task has for itself, in place of ``threading.local``."""

    def __new__(cls, *args: Any, **named: Any) -> Self:
        """Return an instance that is initialised anew in each task."""
        self = super().__new__(cls)
        number = next(_LOCALS)
        object.__setattr__(self, "_made_with", (number, args, named))
        # Python itself calls __init__ for the first task.
        KERNEL.current.local_values[number] = {}
        return self

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            return _values(self)
        try:
            return _values(self)[name]
        except KeyError:
            return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _values(self)[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del _values(self)[name]
        except KeyError:
            raise AttributeError(name) from None


def _values(of: Local) -> dict[str, Any]:
    number, args, named = object.__getattribute__(of, "_made_with")
    values = KERNEL.current.local_values
    found = values.get(number)
    if found is None:
        found = values[number] = {}
        if type(of).__init__ is not object.__init__:
            of.__init__(*args, **named)  # type: ignore[misc]  # the original does so too, in each thread
    return found


def _maybe_pause() -> None:
    if KERNEL.preemption and KERNEL.chance.random() < KERNEL.preemption:
        KERNEL.pause()


# --- In place of functions of `_thread` and `time` --------------------------------------------------------------------


def start_new_thread(
    function: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> int:
    """Start a task in the process of the calling one; return its number."""
    thread = getattr(function, "__self__", None)
    name = str(getattr(thread, "_name", None) or getattr(function, "__name__", "thread"))
    return KERNEL.start(lambda: function(*args, **(kwargs or {})), name=name).number


def get_ident() -> int:
    """Return the number of the calling task."""
    return KERNEL.current.number


def set_sentinel() -> Lock:
    """Return a lock that is released when the calling task ends."""
    KERNEL.current.sentinel = sentinel = Lock()
    return sentinel


def monotonic() -> float:
    """Return the virtual time, in seconds."""
    return KERNEL.now + 1000.0


def perf_counter() -> float:
    """Return the virtual time, in seconds."""
    return KERNEL.now
