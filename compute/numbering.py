"""Sequence numbers of an agent's messages to its cell: the cell ignores a message that arrives after its successor."""

import threading
from dataclasses import dataclass

from moorage import ids


@dataclass(frozen=True, slots=True)
class MessageId:
    """The sequence number of a message within the incarnation of its agent."""

    incarnation: str
    number: int


class Numbering:
    """Numbers the messages of one process of an agent; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._incarnation = ids.fresh()
        self._number = 0

    @property
    def incarnation(self) -> str:
        """The present incarnation."""
        with self._lock:
            return self._incarnation

    def next(self) -> MessageId:
        """Return the number of the next message."""
        with self._lock:
            self._number += 1
            return MessageId(self._incarnation, self._number)

    def begin_anew(self, superseded: str) -> bool:
        """Begin another incarnation, unless ``superseded`` is past already; return whether one was begun."""
        with self._lock:
            if self._incarnation != superseded:
                return False
            self._incarnation = ids.fresh()
            self._number = 0
            return True
