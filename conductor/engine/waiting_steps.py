"""Queue the operations that wait for a thread of the worker."""

import heapq
import itertools
import time
from collections.abc import Callable

from conductor.engine.bulkheads import KeptPlace
from conductor.engine.steps import Operation

#: An operation, and the place in a bulkhead that is kept for it.
Queued = tuple[Operation, KeptPlace | None]

_AT_ONCE = float("-inf")


class StepQueue:
    """Operations in a heap for each kind; the kinds with due operations take turns.

    So thousands of builds do not delay a deletion or a move. If a place in a bulkhead is kept for an operation, the
    operation comes first: the place is unused until the operation continues. The caller locks the queue.
    """

    def __init__(self) -> None:
        #: By kind, the kind whose turn is next first: heaps by due time (monotonic clock), then by order of arrival.
        self._heaps: dict[str, list[tuple[float, int, Operation, KeptPlace | None]]] = {}
        self._arrivals = itertools.count()

    def put(self, operation: Operation, place: KeptPlace | None = None) -> None:
        """Add an operation, with the place that is kept for it."""
        due = time.monotonic() + operation.delay if place is None else _AT_ONCE
        heapq.heappush(self._heaps.setdefault(operation.kind, []), (due, next(self._arrivals), operation, place))

    def seconds_to_next(self) -> float | None:
        """Return the seconds until an operation is due, at most 0 if one is due; null if the queue is empty."""
        return min(heap[0][0] for heap in self._heaps.values()) - time.monotonic() if self._heaps else None

    def take(self, may_join: Callable[[Operation, Operation], bool], most: int) -> list[Queued]:
        """Take a due operation, and at most ``most`` in all of those after it that may join it; one must be due."""
        now = time.monotonic()
        kind, heap = min(self._heaps.items(), key=lambda each: each[1][0][:2])
        if heap[0][0] != _AT_ONCE:
            kind, heap = next(each for each in self._heaps.items() if each[1][0][0] <= now)
        del self._heaps[kind]
        taken: list[Queued] = [heapq.heappop(heap)[2:]]
        while heap and len(taken) < most and heap[0][0] <= now and may_join(taken[0][0], heap[0][2]):
            if heap[0][3] is not None:
                break  # its place is for a thread of its own
            taken.append(heapq.heappop(heap)[2:])
        if heap:
            self._heaps[kind] = heap  # at the end: its next turn is after those of the others
        return taken
