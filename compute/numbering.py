"""Sequence numbers of an agent's messages to its cell: the cell ignores a message that arrives after its successor."""

import threading
from typing import Any, TypeVar

from moorage import ids
from moorage.messages import ReportHostsInCell, ReportProviderTree, ReshapeProviderTree

M = TypeVar("M", ReportHostsInCell, ReportProviderTree, ReshapeProviderTree)


class Numbering:
    """Numbers the messages of one process of an agent, through all its incarnations; thread-safe."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._lock = threading.Lock()
        self._incarnation = ids.fresh()
        self._number = 0

    @property
    def incarnation(self) -> str:
        """The current incarnation."""
        with self._lock:
            return self._incarnation

    def message(self, kind: type[M], **content: Any) -> M:
        """Return the next message of the agent."""
        with self._lock:
            self._number += 1
            incarnation, number = self._incarnation, self._number
        return kind(request_id=ids.fresh(), agent=self._agent, incarnation=incarnation, number=number, **content)

    def begin_anew(self, superseded: str) -> bool:
        """Begin another incarnation if ``superseded`` is still the current one; return whether one was begun."""
        with self._lock:
            if self._incarnation != superseded:
                return False
            self._incarnation = ids.fresh()
            return True
