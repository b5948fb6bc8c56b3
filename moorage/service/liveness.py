"""Essential threads of a process: if one has ended without a stop, the process is unhealthy."""

import threading

_LOCK = threading.Lock()
_ESSENTIAL: set[threading.Thread] = set()


def watch(thread: threading.Thread) -> None:
    """Expect a started thread to run until :func:`forget` is called."""
    with _LOCK:
        _ESSENTIAL.add(thread)


def forget(thread: threading.Thread) -> None:
    """Stop watching a thread."""
    with _LOCK:
        _ESSENTIAL.discard(thread)


def dead() -> list[str]:
    """Return the sorted names of the watched threads that have died."""
    with _LOCK:
        return sorted(thread.name for thread in _ESSENTIAL if not thread.is_alive())
