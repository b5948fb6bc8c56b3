"""Benchmark of the search for allocation candidates on wide hosts, compared with a cross product."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from statistics import median

from harness.bench.candidate_shapes import Shape, shapes
from moorage.model import UNSUFFIXED
from placement_store.candidates import HostTree, search

#: The largest cross product that is walked through for comparison: a tenth of a second of work.
_LARGEST_PRODUCT = 100_000


@dataclass(frozen=True)
class CandidatesResult:
    """The result of one shape; the field names are those of `moorage bench candidates -f json`."""

    shape: str
    providers: int
    groups: int
    #: The number of ways to give each class and each group a provider with it (powers of ten).
    combinations: str
    #: The number of candidates taken.
    candidates: int
    #: Seconds to the first candidate, or to the proof that there is none.
    first_ms: float
    first_worst_ms: float
    #: Seconds to all those candidates.
    all_ms: float
    #: The time of the cross product for all candidates as a multiple; null where it is too large to be tried.
    product_takes: float | None


def measure(repeat: int, candidates: int) -> Iterator[CandidatesResult]:
    """Measure each shape ``repeat`` times: its first candidate, and the first so many.

    Times are of the processor, so that other work on the machine does not count.
    """
    for shape in shapes():
        first = [_seconds(partial(_take, shape, 1)) for _ in range(repeat)]
        several = [_seconds(partial(_take, shape, candidates)) for _ in range(repeat)]
        yield CandidatesResult(
            shape=shape.name,
            providers=len(shape.tree.providers) + len(shape.tree.sharing),
            groups=len(shape.request.groups),
            combinations=f"10^{math.log10(_combinations(shape)):.1f}",
            candidates=_take(shape, candidates),
            first_ms=_milliseconds(median(first)),
            first_worst_ms=_milliseconds(max(first)),
            all_ms=_milliseconds(median(several)),
            product_takes=_compared(shape, repeat),
        )


def _take(shape: Shape, most: int) -> int:
    """Search for at most ``most`` candidates; return their number."""
    return sum(1 for _ in islice(search(shape.tree, shape.request), most))


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


# --- The cross product ----------------------------------------------------------------------------------------------


def _compared(shape: Shape, repeat: int) -> float | None:
    if _combinations(shape) > _LARGEST_PRODUCT or shape.request.same_subtree:
        return None
    by_search = min(_seconds(partial(_take, shape, sys.maxsize)) for _ in range(repeat))
    by_product = min(_seconds(partial(_by_product, shape)) for _ in range(max(1, repeat // 5)))
    return round(by_product / by_search, 1)


def _combinations(shape: Shape) -> int:
    return math.prod(len(places) for _, places in _parts(shape))


def _parts(shape: Shape) -> list[tuple[dict[str, int], list[int]]]:
    """Return the parts that must be placed whole, each with the numbers of the providers that have all its classes."""
    groups = shape.request.groups
    wholes = [{name: amount} for name, amount in groups[UNSUFFIXED].resources.items()]
    wholes += [dict(group.resources) for suffix, group in groups.items() if suffix != UNSUFFIXED]
    providers = _providers(shape.tree)
    return [(whole, [n for n, held in enumerate(providers) if whole.keys() <= held.keys()]) for whole in wholes]


def _providers(tree: HostTree) -> list[dict[str, int]]:
    return [
        {name: row.total - row.used for name, row in provider.inventories.items()}
        for provider in (*tree.providers, *tree.sharing)
    ]


def _by_product(shape: Shape) -> set[frozenset[tuple[tuple[int, str], int]]]:
    """Return all candidates by trying every combination, considering amounts alone."""
    parts = _parts(shape)
    room = _providers(shape.tree)
    found = set()
    for places in product(*(places for _, places in parts)):
        amounts: dict[tuple[int, str], int] = {}
        for place, (whole, _) in zip(places, parts, strict=True):
            for name, amount in whole.items():
                amounts[place, name] = amounts.get((place, name), 0) + amount
        if all(amount <= room[place][name] for (place, name), amount in amounts.items()):
            found.add(frozenset(amounts.items()))
    return found
