"""The progress of a run, shown while it lasts."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console


@contextlib.contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """Show what a run is doing on standard error, where that is a terminal; yield the function that changes it."""
    with Console(stderr=True).status(first) as status:
        yield status.update
