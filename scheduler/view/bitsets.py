"""Sets of names by row as bitsets: each name has a bit, so that it is tested on all rows in a few operations."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from moorage.plugin import BoolArray
from scheduler.view.column import Column

_WIDTH = 64
_ONES = 2**_WIDTH - 1

WordArray = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Bitsets:
    """The sets of names of all rows at one moment."""

    length: int
    #: The bit of each name. Names may be added later; their bits are not set in ``words``, or lie beyond its end.
    numbers: Mapping[str, int]
    #: Word ``i`` of each row holds the bits ``64 * i`` to ``64 * i + 63``.
    words: Sequence[WordArray]

    def has(self, name: str) -> BoolArray:
        """Return a mask of the rows whose set contains ``name``."""
        number = self.numbers.get(name)
        if number is None or number // _WIDTH >= len(self.words):
            return np.zeros(self.length, dtype=np.bool_)
        word = self.words[number // _WIDTH]
        return (word & np.uint64(1 << number % _WIDTH)).astype(np.bool_)


class BitsetColumns:
    """A set of names for each row, in columns of 64 names. Use under the host cache's lock."""

    def __init__(self) -> None:
        self._length = 0
        self._numbers: dict[str, int] = {}
        self._words: list[Column[np.uint64]] = []
        #: The free bits of the words, and the number of names at which unused names are forgotten.
        self._free: list[int] = []
        self._forget_at = _WIDTH
        # Most hosts have the same traits and aggregates: their bits are computed once.
        self._bits = lru_cache(maxsize=1024)(self._new_bits)

    def put(self, row: int, names: frozenset[str]) -> None:
        """Replace the set of a row."""
        bits = self._bits(names)
        for column in self._words:
            column.put(row, bits & _ONES)
            bits >>= _WIDTH

    def resize(self, length: int) -> None:
        """Cut off rows at the end, or add rows with empty sets."""
        self._length = length
        for column in self._words:
            column.resize(length)

    def frozen(self) -> Bitsets:
        """Return the current sets, in arrays that never change."""
        return Bitsets(self._length, self._numbers, tuple(column.frozen() for column in self._words))

    def _new_bits(self, names: frozenset[str]) -> int:
        new = sorted(names - self._numbers.keys())
        if len(new) > len(self._free) and len(self._numbers) >= self._forget_at:
            self._forget_unused(names)
        while len(new) > len(self._free):
            first = len(self._words) * _WIDTH
            self._free[:0] = reversed(range(first, first + _WIDTH))
            self._words.append(Column(np.uint64))
            self._words[-1].resize(self._length)
        for name in new:
            self._numbers[name] = self._free.pop()
        return sum(1 << self._numbers[name] for name in names)

    def _forget_unused(self, names: Collection[str]) -> None:
        """Forget the names that no row has any more, except ``names``: aggregates come and go all the time."""
        used = [int(np.bitwise_or.reduce(column.frozen())) for column in self._words]
        kept, free = {}, []
        for name, number in self._numbers.items():
            if name in names or used[number // _WIDTH] >> number % _WIDTH & 1:
                kept[name] = number
            else:
                free.append(number)
        # Use a new dict: in earlier snapshots, the bits keep their meaning.
        self._numbers = kept
        self._free += free
        # Do not repeat this for each further word while thousands of new hosts each bring a new name.
        self._forget_at = max(_WIDTH, 2 * len(kept))
        self._bits.cache_clear()
