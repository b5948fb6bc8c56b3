"""Wait at the command line until orders are carried out, with a progress bar on standard error."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from moorage import errors

T = TypeVar("T")

#: Seconds between two reads: short enough for an operator, long enough for a conductor.
_INTERVAL = 0.3


def wait_for(
    look: Callable[[str], T], uuids: Sequence[str], done: Callable[[T], bool], what: str, seconds: float
) -> list[T]:
    """Read each object until it is ``done``, for ``seconds`` at most; return the objects as last read.

    An unavailable conductor is asked again: it has the orders on record.

    :raises Unavailable: an object could not be read even once in that time.
    """
    end = time.monotonic() + seconds
    seen: dict[str, T] = {}
    open_ = list(uuids)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task(what, total=len(uuids))
        while True:
            fault: errors.Unavailable | None = None
            for uuid in list(open_):
                try:
                    seen[uuid] = look(uuid)
                except errors.Unavailable as unavailable:
                    fault = unavailable
                    break
                if done(seen[uuid]):
                    open_.remove(uuid)
                    progress.advance(task)
            if not open_ or time.monotonic() > end:
                break
            time.sleep(_INTERVAL)
    if fault is not None and len(seen) < len(uuids):
        raise fault
    return [seen[uuid] for uuid in uuids]
