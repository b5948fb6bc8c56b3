"""The numbers of an agent's messages to its cell: one that arrives after its successor changes nothing there."""

import threading
from dataclasses import dataclass

from moorage import ids


@dataclass(frozen=True, slots=True)
class MessageId:
    """The number of a message, and the incarnation of the agent that sends it."""

    incarnation: str
    number: int


class Numbering:
    """Numbers the messages of one process of an agent, for several threads."""

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
        """Continue as another incarnation, unless that has been done; tell whether it was done now."""
        with self._lock:
            if self._incarnation != superseded:
                return False
            self._incarnation = ids.fresh()
            self._number = 0
            return True
