"""Threads that a process cannot do without: one that has died without being told to makes it unhealthy."""

import threading

_LOCK = threading.Lock()
_ESSENTIAL: set[threading.Thread] = set()


def watch(thread: threading.Thread) -> None:
    """Expect a thread, which has been started, to live until :func:`forget` is called."""
    with _LOCK:
        _ESSENTIAL.add(thread)


def forget(thread: threading.Thread) -> None:
    """Expect nothing more of a thread."""
    with _LOCK:
        _ESSENTIAL.discard(thread)


def dead() -> list[str]:
    """Return the names of the threads that have died, in order."""
    with _LOCK:
        return sorted(thread.name for thread in _ESSENTIAL if not thread.is_alive())
