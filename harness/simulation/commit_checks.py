"""Check the promises that hold at every moment, right after each commit to the main database."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from harness.simulation import queries
from harness.simulation.clients.callers import Callers
from harness.simulation.clients.seats import wrong_seats
from harness.simulation.cloud import WHOLE, SimulatedCloud, uses_pool
from harness.simulation.machine import store
from moorage.model import Resources

#: The tables on which the checks depend; most records of conductors are checked at the end.
_JUDGED_TABLES = frozenset(("allocations", "cell_attempts", "consumers", "hosts", "inventories", "resource_providers"))
#: The tables that each check reads: a check is repeated only after one of them was written.
_OF_INVENTORIES = frozenset(("allocations", "inventories"))
_OF_TOTALS = frozenset(("hosts", "inventories", "resource_providers"))
_OF_PLACEMENTS = frozenset(("allocations", "consumers"))
_OF_MOVES = frozenset(("cell_attempts", "consumers"))


class CommitChecks:
    """Checks each commit, and adds the promises that it has broken to those that the callers note.

    :param file: the main database, read-only, with the files of guests attached by cell.
    """

    def __init__(self, cloud: SimulatedCloud, callers: Callers, file: sqlite3.Connection) -> None:
        self._main = cloud.database.url.database
        self._callers = callers
        self._file = file
        guests_of = "SELECT host, attempt_id, instance_uuid, stopped FROM {cell}.guests"
        guests = " UNION ALL ".join(guests_of.format(cell=cell) for cell in cloud.cell_names)
        self._unheld_guests = queries.UNHELD_GUESTS.format(guests=guests)
        self._guests_on_both_hosts = queries.GUESTS_ON_BOTH_HOSTS.format(guests=guests)
        #: The allocated amount of each inventory after the last commit, by provider and class.
        self._allocated: dict[tuple[str, int], int] = {}
        #: The number of commits to the main database so far.
        self.commits = 0
        store.FAULTS.committed = self._committed

    def _committed(self, process: str, file: str, written: Collection[str]) -> None:
        """Check the promises that hold at every moment; called right after a commit, before any other event."""
        if file != self._main:
            return
        self.commits += 1
        if _JUDGED_TABLES.isdisjoint(written):
            return
        wrong: list[str] = []
        if not _OF_INVENTORIES.isdisjoint(written):
            wrong += [f"promise 1: at the commit of {process}, {fault}" for fault in self._wrong_inventories()]
            wrong += [f"at the commit of {process}, {fault}" for fault in wrong_seats(self._file)]
        if not _OF_TOTALS.isdisjoint(written):
            wrong += self._wrong_totals()
        # Guests are in separate files, so they are checked at each commit.
        wrong += [
            f"promise 3: at the commit of {process}, {host} holds nothing for its guest, attempt {attempt} of {uuid}"
            for host, is_up, attempt, uuid in self._file.execute(self._unheld_guests)
            # Who deletes a host asserts that it has no guests. If it has, they are destroyed before it is up again.
            if is_up or host not in self._callers.operators.deleted
        ]
        if not _OF_MOVES.isdisjoint(written):
            wrong += [
                f"promise 2: at the commit of {process}, {uuid} has a guest on {destination} and runs on {source}"
                for uuid, source, destination in self._file.execute(self._guests_on_both_hosts)
            ]
        if not _OF_PLACEMENTS.isdisjoint(written):
            wrong += self._wrong_placements()
        self._callers.broken += wrong

    def _wrong_inventories(self) -> Iterator[str]:
        for uuid, name, number, used, amount, capacity in self._file.execute(queries.INVENTORIES):
            # An operator may reserve more than is free; then no more may be allocated.
            if amount != used or amount > max(capacity, self._allocated.get((uuid, number), 0)):
                yield f"{name} has {amount} of class {number} allocated, and {used} counted as used, of {capacity:g}"
            self._allocated[uuid, number] = amount

    def _wrong_totals(self) -> Iterator[str]:
        totals: dict[str, dict[str, int]] = defaultdict(dict)
        for host, name, total in self._file.execute(queries.TOTALS):
            totals[host][name] = total
        return (f"promise 1: {host} has {has} in all" for host, has in totals.items() if has != _whole(host))

    def _wrong_placements(self) -> list[str]:
        roots: dict[str, set[int]] = defaultdict(set)
        for uuid, root in self._file.execute(queries.PLACEMENTS):
            roots[uuid].add(root)
        wrong = [f"promise 2: {uuid} is on {len(on)} hosts at once" for uuid, on in roots.items() if len(on) > 1]
        return [*wrong, *self._broken_rules(roots)]

    def _broken_rules(self, roots: Mapping[str, set[int]]) -> Iterator[str]:
        for group in self._callers.groups.values():
            members = [uuid for uuid, told in self._callers.told.items() if told.group == group.uuid and uuid in roots]
            places = Counter(root for uuid in members for root in roots[uuid])
            if group.policy == "anti-affinity" and max(places.values(), default=0) > group.max_server_per_host:
                yield f"promise 6: {group.max_server_per_host} members of {group} may be on one host: {places}"
            # Members on a host that is forced down do not count.
            if group.policy == "affinity" and len(places) > 1 and not self._callers.forced_down:
                yield f"promise 6: the members of the affinity group are on {len(places)} hosts"


def _whole(host: str) -> Resources:
    """Return the total inventory of a host's providers."""
    return {name: total for name, total in WHOLE.items() if name != "DISK_GB" or not uses_pool(host)}
