"""Where the members of a request's server group are, by the rows of one view."""

from collections.abc import Mapping

import numpy as np

from moorage.plugin import IntArray
from placement_store.server_groups.rows import OccupiedRoot


class GroupMembers:
    """How many members of a group each host has, and all others together. For one decision, which may plan more.

    :param hosts: how many there are.
    :param row_of_node: the row of each compute node; what is on another root provider is elsewhere than every host.
    :param roots: where members are, without those that the request is for.
    """

    def __init__(self, hosts: int, row_of_node: Mapping[str, int], roots: Mapping[str, OccupiedRoot]) -> None:
        self._here = np.zeros(hosts, dtype=np.int64)
        # Of them, those that bind others to their host: a guest on a host that is forced down does not run any more.
        self._binding_here = np.zeros(hosts, dtype=np.int64)
        self._binding = 0
        for uuid, root in roots.items():
            self._count(row_of_node.get(uuid), root.members, forced_down=root.forced_down)

    def add(self, row: int, *, forced_down: bool) -> None:
        """Count one more on a host."""
        self._count(row, 1, forced_down=forced_down)

    def with_more(self, counts: IntArray) -> "GroupMembers":
        """Return the same with so many more on each host, as each host by itself would see it: none is elsewhere."""
        more = GroupMembers(0, {}, {})
        more._here = self._here + counts
        more._binding_here, more._binding = self._binding_here, self._binding
        return more

    @property
    def here(self) -> IntArray:
        """How many each host has."""
        return _frozen(self._here.copy())

    @property
    def elsewhere(self) -> IntArray:
        """How many the others have, those left out that are forced down."""
        return _frozen(self._binding - self._binding_here)

    def here_at(self, row: int) -> int:
        """Return how many one host has."""
        return int(self._here[row])

    def elsewhere_at(self, row: int) -> int:
        """Return how many the other hosts have."""
        return self._binding - int(self._binding_here[row])

    def _count(self, row: int | None, members: int, *, forced_down: bool) -> None:
        if row is not None:
            self._here[row] += members
        if not forced_down:
            self._binding += members
            if row is not None:
                self._binding_here[row] += members


def _frozen(array: IntArray) -> IntArray:
    array.flags.writeable = False
    return array
