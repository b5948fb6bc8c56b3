"""Let transactions commit in another order than that of their numbers in the change feed, as they do on a server.

SQLite's transactions are carried out one after another, so by themselves the numbers would appear in their order.
"""

import sqlite3

from harness.simulation.machine.kernel import KERNEL
from placement_store.db.change_feed import SETTLED_AFTER

#: The probability that a transaction leaves numbers to others, the most that it leaves, and the probability that one of
#: them is taken.
_LEAVES, _MOST, _TAKES = 0.5, 3, 0.7
_INSERT, _RENUMBER = "INSERT INTO changes ", "UPDATE OR IGNORE changes SET id = ? WHERE id = ?"


class FeedNumbers:
    """Holds the numbers that count as assigned to transactions which commit later."""

    def __init__(self) -> None:
        #: When each of them was assigned.
        self._left: dict[int, float] = {}
        self._clock_was_set = float("-inf")
        #: Whether a transaction took so long from its number to its commit that no reader waits for it.
        self.were_late = False

    def set_clock(self) -> None:
        """Note that the clock of the databases is set: changes from before may seem so old that no reader waits."""
        self._left.clear()
        self._clock_was_set = KERNEL.now

    def renumber(self, cursor: sqlite3.Cursor, sql: str) -> float | None:
        """Change the numbers of the rows that a statement has inserted into the feed.

        All rows move up, and leave some numbers before them; or the last row takes a number that was left.

        :returns: when the number that was taken had been assigned, if any.
        """
        if not sql.startswith(_INSERT):
            return None
        last = int(cursor.lastrowid or 0)
        first = last - cursor.rowcount + 1
        renumbered = sqlite3.Cursor(cursor.connection)
        # A reader waits a little longer than this. A number of a transaction that was rolled back is assigned again.
        recent = KERNEL.now - 0.8 * SETTLED_AFTER
        self._left = {number: since for number, since in self._left.items() if since > recent}
        if (free := [number for number in self._left if number < first]) and KERNEL.chance.random() < _TAKES:
            renumbered.execute(_RENUMBER, (number := KERNEL.chance.choice(free), last))
            return self._left.pop(number)
        if KERNEL.chance.random() < _LEAVES:
            more = KERNEL.chance.randint(1, _MOST)
            for number in range(last, first - 1, -1):
                renumbered.execute(_RENUMBER, (number + more, number))
            self._left.update(dict.fromkeys(range(first, first + more), KERNEL.now))
        return None

    def committed(self, since: float) -> None:
        """Note that a transaction has committed whose number was assigned at this time."""
        is_late = KERNEL.now - since > SETTLED_AFTER or since <= self._clock_was_set
        self.were_late = self.were_late or is_late
