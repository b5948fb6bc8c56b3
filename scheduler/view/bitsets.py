"""Which of many names each row has: a bit a name, so that asking one name of all rows is a few operations."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from scheduler.view.column import Column

_WIDTH = 64
_ONES = 2**_WIDTH - 1

BoolArray = NDArray[np.bool_]
WordArray = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Bits:
    """The names of all rows at one moment."""

    length: int
    #: Only ever grows, and a name that is newer than these words stands in none of them.
    numbers: Mapping[str, int]
    words: Sequence[WordArray]

    def has(self, name: str) -> BoolArray:
        """Tell which rows have ``name``."""
        number = self.numbers.get(name)
        if number is None or number // _WIDTH >= len(self.words):
            return np.zeros(self.length, dtype=np.bool_)
        word = self.words[number // _WIDTH]
        return (word & np.uint64(1 << number % _WIDTH)).astype(np.bool_)


class BitColumns:
    """A set of names for each row: 64 names a column."""

    def __init__(self) -> None:
        self._length = 0
        self._numbers: dict[str, int] = {}
        self._words: list[Column[np.uint64]] = []
        # Most hosts are alike: their names are worked out once.
        self._bits = lru_cache(maxsize=1024)(self._new_bits)

    def put(self, row: int, names: frozenset[str]) -> None:
        """Make ``names`` all that a row has."""
        bits = self._bits(names)
        for column in self._words:
            # Writing what is there already would copy a column for nothing.
            if int(column[row]) != bits & _ONES:
                column[row] = bits & _ONES
            bits >>= _WIDTH

    def resize(self, length: int) -> None:
        """Cut off rows at the end, or add rows that have no name."""
        self._length = length
        for column in self._words:
            column.resize(length)

    def frozen(self) -> Bits:
        """Return all rows as they are now, for good."""
        return Bits(self._length, self._numbers, tuple(column.frozen() for column in self._words))

    def _new_bits(self, names: Collection[str]) -> int:
        bits = 0
        for name in sorted(names):
            bits |= 1 << self._numbers.setdefault(name, len(self._numbers))
        while len(self._words) * _WIDTH < len(self._numbers):
            self._words.append(Column(np.uint64))
            self._words[-1].resize(self._length)
        return bits
