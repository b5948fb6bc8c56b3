"""A growable array with copy-on-write: readers get frozen arrays, and a write to shared rows copies it first."""

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

S = TypeVar("S", bound=np.generic)

_FIRST_CAPACITY = 16


def frozen(array: NDArray[S]) -> NDArray[S]:
    """Make an array read-only and return it."""
    array.flags.writeable = False
    return array


class Column(Generic[S]):
    """One value for each row.

    An array that :meth:`frozen` has returned never changes. Rows beyond its end may be written in the same memory, so
    that growth costs one copy of each value, amortised.
    """

    def __init__(self, dtype: type[S], fill: Any = 0) -> None:
        self._fill = fill
        self._buffer: NDArray[S] = np.full(_FIRST_CAPACITY, fill, dtype=dtype)
        self._length = 0
        self._shared: NDArray[S] | None = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> Any:
        return self._buffer[row]

    def __setitem__(self, row: int, value: Any) -> None:
        if self._shared is not None and row < len(self._shared):
            self._unshare()
        self._buffer[row] = value

    def put(self, row: int, value: Any) -> None:
        """Write a value unless it is already there: a write to rows that a reader has would copy the column."""
        if self._shared is not None and row < len(self._shared):
            if self._buffer[row] == value:
                return
            self._unshare()
        self._buffer[row] = value

    def frozen(self) -> NDArray[S]:
        """Return the current values as an array that never changes."""
        if self._shared is None or len(self._shared) != self._length:
            self._shared = frozen(self._buffer[: self._length])
        return self._shared

    def resize(self, length: int) -> None:
        """Cut off rows at the end, or add rows with the fill value."""
        if length < self._length:
            # The rows that are cut off may be written again later, while a reader still has them. Without a reader,
            # nothing is copied: each of thousands of removed hosts cuts off one row.
            if self._shared is not None and length < len(self._shared):
                self._unshare()
            self._buffer[length : self._length] = self._fill
        elif length > len(self._buffer):
            grown = np.full(max(length, 2 * len(self._buffer)), self._fill, dtype=self._buffer.dtype)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
            self._shared = None
        self._length = length

    def _unshare(self) -> None:
        self._buffer = self._buffer.copy()
        self._shared = None
