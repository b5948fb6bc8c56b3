"""Queue the steps that wait for a thread of the worker, or for room in a bulkhead; the kinds of operations take turns.

So thousands of builds do not delay a deletion or a move.
"""

import heapq
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from conductor.engine.steps import Operation

_AT_ONCE = float("-inf")


@dataclass(frozen=True, slots=True, eq=False)
class KeptPlace:
    """A place in a bulkhead that is kept for a step which has waited for it; no later step can take it."""

    bulkhead: object
    #: Gives the place to the next step that waits.
    give_back: Callable[[], None]
    #: Removes the next steps of its kind that wait there and may join that of this place, at most so many; returns
    #: their callbacks. The thread of the place makes their calls together with that of the step.
    take_along: Callable[[Callable[["Wake"], bool], int], list["Wake"]]


#: Continues a postponed step, with the place that is kept for it, if any.
Wake = Callable[[KeptPlace | None], None]
#: An operation, and the place in a bulkhead that is kept for it.
Queued = tuple[Operation, KeptPlace | None]


class Postponed(Exception):
    """The step must wait for room in its bulkhead, and holds no thread until then."""

    def __init__(self, register: Callable[[Wake], None]) -> None:
        super().__init__("there is no room for another call to it")
        #: Registers a callback that is called when there is room, or at once if there is room already.
        self.register = register


class PostponedSteps:
    """Postponed steps by kind and key, in their order."""

    def __init__(self) -> None:
        #: The kind whose turn is next is the first.
        self._kinds: dict[str, OrderedDict[object, Wake]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._kinds.values()))

    def put(self, kind: str, key: object, wake: Wake) -> Wake | None:
        """Add a step; return the one whose place it takes."""
        steps = self._kinds.setdefault(kind, OrderedDict())
        former, steps[key] = steps.get(key), wake
        return former

    def remove(self, kind: str, key: object) -> Wake | None:
        """Remove a step if it is here, and return it."""
        steps = self._kinds.get(kind)
        found = None if steps is None else steps.pop(key, None)
        if not steps:
            self._kinds.pop(kind, None)
        return found

    def take(self) -> tuple[str, Wake]:
        """Remove the next step; return its kind and its callback."""
        kind, steps = next(iter(self._kinds.items()))
        del self._kinds[kind]
        _key, wake = steps.popitem(last=False)
        if steps:
            self._kinds[kind] = steps  # at the end: its next turn is after those of the others
        return kind, wake

    def take_along(self, kind: str, may_join: Callable[[Wake], bool], most: int) -> list[Wake]:
        """Remove at most so many of the next steps of a kind, until one may not join; return their callbacks."""
        taken: list[Wake] = []
        while len(taken) < most and (steps := self._kinds.get(kind)):
            key, wake = next(iter(steps.items()))
            if not may_join(wake):
                break
            self.remove(kind, key)
            taken.append(wake)
        return taken


class StepQueue:
    """Operations that wait for a thread, in a heap for each kind.

    An operation with a kept place in a bulkhead comes first: the place is unused until then. The caller locks it.
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
