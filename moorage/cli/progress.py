"""The progress of a command on standard error: bars, and its current activity; only on a terminal.

The library that draws it is imported when something is drawn: most commands end earlier.
"""

import sys
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress

#: Seconds after which a command shows that it still works.
_PATIENCE = 2.0


def bars() -> "Progress":
    """Return bars with counts and the elapsed time; they show nothing if standard error is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class Elapsed:
    """Shows a command's activity, if it has one, and its duration once it takes longer than two seconds."""

    def __init__(self, what: str | None) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._shown: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._what is not None and sys.stderr.isatty():
            self._timer = threading.Timer(_PATIENCE, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def says(self, what: str) -> None:
        """Show another activity from now on."""
        with self._lock:
            self._what = what
            if self._shown is not None:
                self._shown.update(self._task, description=what)

    def stop(self) -> None:
        """Remove the activity from the terminal, before the command prints its result."""
        with self._lock:
            timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()
            if self._shown is not None:
                self._shown.stop()
                self._shown = None

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._timer is None:  # the command has ended meanwhile
                return
            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self._shown = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._shown.add_task(self._what, total=None)
            self._shown.start()
