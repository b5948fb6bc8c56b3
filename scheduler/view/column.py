"""An array that grows, is handed out frozen, and is copied before the next change of what has been handed out."""

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

S = TypeVar("S", bound=np.generic)

_FIRST_CAPACITY = 16


class Column(Generic[S]):
    """One value for each row.

    Whoever holds an array that :meth:`frozen` has returned may rely on it never to change. Rows beyond its end may be
    filled in the same memory, so that growing costs, on the whole, one copy of each value.
    """

    def __init__(self, dtype: type[S], fill: Any = 0) -> None:
        self._fill = fill
        self._buffer: NDArray[S] = np.full(_FIRST_CAPACITY, fill, dtype=dtype)
        self._length = 0
        self._handed_out: NDArray[S] | None = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> Any:
        return self._buffer[row]

    def __setitem__(self, row: int, value: Any) -> None:
        if self._handed_out is not None and row < len(self._handed_out):
            self._take_back()
        self._buffer[row] = value

    def frozen(self) -> NDArray[S]:
        """Return all values as they are now, for good."""
        if self._handed_out is None or len(self._handed_out) != self._length:
            self._handed_out = self._buffer[: self._length]
            self._handed_out.flags.writeable = False
        return self._handed_out

    def resize(self, length: int) -> None:
        """Cut off rows at the end, or add rows with the fill value."""
        if length < self._length:
            # The same rows may be filled anew later, while somebody still holds them.
            self._take_back()
            self._buffer[length:] = self._fill
        elif length > len(self._buffer):
            grown = np.full(max(length, 2 * len(self._buffer)), self._fill, dtype=self._buffer.dtype)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
            self._handed_out = None
        self._length = length

    def _take_back(self) -> None:
        self._buffer = self._buffer.copy()
        self._handed_out = None
