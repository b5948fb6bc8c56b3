"""The members of a request's server group, counted by the rows of one view."""

from collections.abc import Mapping

import numpy as np

from moorage.plugin import IntArray
from placement_store.server_groups.rows import OccupiedRoot
from scheduler.view.column import frozen


class GroupMembers:
    """The number of group members on each host and on all other hosts. For one decision, which adds planned members.

    :param hosts: the number of hosts.
    :param row_of_node: the row of each compute node; a member on another root provider is elsewhere for every host.
    :param roots: the root providers with members; the instances of the request itself are not counted.
    """

    def __init__(self, hosts: int, row_of_node: Mapping[str, int], roots: Mapping[str, OccupiedRoot]) -> None:
        self._here = np.zeros(hosts, dtype=np.int64)
        # Without hosts that are forced down: a guest there no longer runs, and does not restrict the other members.
        self._running_here = np.zeros(hosts, dtype=np.int64)
        self._running = 0
        for uuid, root in roots.items():
            self.add(row_of_node.get(uuid), root.members, forced_down=root.forced_down)

    def add(self, row: int | None, members: int = 1, *, forced_down: bool) -> None:
        """Add members to a host; null for one that is in no row."""
        if row is not None:
            self._here[row] += members
        if not forced_down:
            self._running += members
            if row is not None:
                self._running_here[row] += members

    def with_more(self, counts: IntArray) -> "GroupMembers":
        """Return a copy with more members on each host; these do not count as elsewhere for the other hosts."""
        more = GroupMembers(0, {}, {})
        more._here = self._here + counts
        more._running_here, more._running = self._running_here, self._running
        return more

    @property
    def here(self) -> IntArray:
        """The number of members on each host."""
        return frozen(self._here.copy())

    @property
    def elsewhere(self) -> IntArray:
        """The number of members on the other hosts, without hosts that are forced down."""
        return frozen(self._running - self._running_here)

    def here_at(self, row: int) -> int:
        """Return the number of members on one host."""
        return int(self._here[row])

    def elsewhere_at(self, row: int) -> int:
        """Return the number of members on the other hosts, without hosts that are forced down."""
        return self._running - int(self._running_here[row])
