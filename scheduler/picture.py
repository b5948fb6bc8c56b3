"""The picture of all hosts in memory: what was last read of them, and what has been claimed here since.

It is a cache. Whoever changes it says what was read; whoever decides takes a snapshot. The claim transaction judges.
"""

import hashlib
import itertools
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from moorage.model import Resources
from moorage.plugin import HostInventory
from scheduler.bits import BitColumns
from scheduler.columns import Column
from scheduler.facts import HostFacts
from scheduler.forest import Forest, Member, Tree
from scheduler.hosts import HostRow
from scheduler.indexes import NameIndex, ProviderIndex
from scheduler.inventories import Inventories
from scheduler.view import Snapshot

#: The ``seq`` of a row that is known not to be as the store has it; no row of the store has it.
UNSURE = -1


@dataclass(frozen=True, slots=True)
class Provider:
    """A resource provider as it was read. A root is its own root."""

    id: int
    uuid: str
    seq: int
    root_id: int
    parent_id: int | None
    inventories: Mapping[str, HostInventory]
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


#: The number of the reading that is shown of each provider, by uuid.
Readings = Mapping[str, int | None]


class Picture:
    """All hosts as this scheduler knows them. Safe to use from several threads.

    A host is served by the tree whose root is its compute node; a node that is no root serves nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._hosts: list[HostRow] = []
        self._trees: list[Tree | None] = []
        self._row_of_host: dict[int, int] = {}
        self._row_of_node: dict[str, int] = {}
        self._seqs: dict[int, int] = {}
        self._ids: dict[str, int] = {}
        self._reading_of_provider: dict[int, int] = {}
        self._reading_numbers = itertools.count()
        self._unsure: set[int] = set()
        self._forest = Forest()
        self._names: NameIndex | None = None
        self._facts: HostFacts | None = None
        self._index: ProviderIndex | None = None
        self._alive = Column(np.bool_)
        self._forced_down = Column(np.bool_)
        self._disabled = Column(np.bool_)
        self._single = Column(np.bool_)
        self._zones: dict[str, int] = {}
        self._zone_codes = Column(np.int32)
        self._cells: dict[str, int] = {}
        self._cell_codes = Column(np.int32)
        self._ties = Column(np.uint64)
        self._placed = Column(np.int64)
        self._under_way = Column(np.int64)
        self._failures = Column(np.float64)
        self._traits = BitColumns()
        self._root_traits = BitColumns()
        self._aggregates = BitColumns()
        self._inventories = Inventories()
        self._snapshot: Snapshot | None = None
        self._rows_are_shared = False

    # --- What decisions take ----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return all hosts as they are now; the same object until something changes."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = self._new_snapshot()
            return self._snapshot

    def _new_snapshot(self) -> Snapshot:
        if self._names is None:
            self._names = NameIndex(self._hosts)
        if self._index is None:
            self._index = ProviderIndex(self._trees)
        self._rows_are_shared = True
        if self._facts is None:
            self._facts = HostFacts(self._hosts)
        return Snapshot(
            hosts=self._hosts,
            trees=self._trees,
            names=self._names,
            index=self._index,
            alive=self._alive.frozen(),
            forced_down=self._forced_down.frozen(),
            disabled=self._disabled.frozen(),
            single=self._single.frozen(),
            # Both only ever grow, and a code that is newer than the snapshot stands in none of its rows.
            zones=self._zones,
            zone_codes=self._zone_codes.frozen(),
            cells=self._cells,
            cell_codes=self._cell_codes.frozen(),
            ties=self._ties.frozen(),
            traits=self._traits.frozen(),
            root_traits=self._root_traits.frozen(),
            aggregates=self._aggregates.frozen(),
            classes=self._inventories.frozen(),
            facts=self._facts,
            placed=self._placed.frozen(),
            under_way=self._under_way.frozen(),
            failures=self._failures.frozen(),
            members=None,
            neighbours={},
        )

    # --- What followers compare and change --------------------------------------------------------------------------

    def provider_seqs(self) -> dict[int, int]:
        """Return the ``seq`` of every provider by id, :data:`UNSURE` where the picture runs ahead of what was read."""
        with self._lock:
            return {id_: UNSURE if id_ in self._unsure else seq for id_, seq in self._seqs.items()}

    def host_seqs(self) -> dict[int, int]:
        """Return the ``seq`` of every host by id."""
        with self._lock:
            return {host.id: host.seq for host in self._hosts}

    def unsure(self) -> set[int]:
        """Return the ids of the providers that have been claimed from here since they were last read."""
        with self._lock:
            return set(self._unsure)

    def root_ids(self, uuids: Collection[str]) -> set[int]:
        """Return the ids of the roots of these providers' trees, as far as they are known."""
        with self._lock:
            known = (self._forest.get(self._ids[uuid]) for uuid in uuids if uuid in self._ids)
            return {member.root_id for member in known if member}

    def tree_ids(self, root_ids: Collection[int]) -> set[int]:
        """Return the ids of all known providers of these trees."""
        with self._lock:
            return self._forest.ids_under(root_ids)

    def members(self, ids: Collection[int]) -> list[Member]:
        """Return those of these providers that are known."""
        with self._lock:
            return [member for id_ in ids if (member := self._forest.get(id_))]

    def update(
        self,
        *,
        hosts: Iterable[HostRow] = (),
        gone_hosts: Iterable[int] = (),
        providers: Iterable[Provider] = (),
        gone_providers: Iterable[int] = (),
    ) -> None:
        """Take over what was read; what was read without being found is gone."""
        with self._lock:
            self._snapshot = None
            for host_id in gone_hosts:
                self._drop_host(host_id)
            for host in hosts:
                self._put_host(host)
            for provider_id in gone_providers:
                self._drop_provider(provider_id)
            for provider in providers:
                self._put_provider(provider)
            for root_id in self._forest.take_changed():
                self._replant(root_id)

    def readings(self, uuids: Collection[str]) -> Readings:
        """Return which reading of each provider is shown, to be kept while claiming."""
        with self._lock:
            return {uuid: self._reading_of(uuid) for uuid in uuids}

    def claimed(self, claims: Iterable[tuple[str, Resources]], readings: Readings) -> None:
        """Show at once what was claimed here of some providers.

        :param readings: those shown before the claim's transaction began. A provider that was read anew since may show
            the claim already. Counting it twice would hide room that there is, so there it waits for the next reading.
        """
        with self._lock:
            self._snapshot = None
            for uuid, resources in claims:
                reading = self._reading_of(uuid)
                if reading is None:
                    continue
                self._unsure.add(self._ids[uuid])
                member = self._forest.get(self._ids[uuid])
                if member and reading == readings.get(uuid):
                    self._inventories.use(member.slots, resources)

    def _reading_of(self, uuid: str) -> int | None:
        provider_id = self._ids.get(uuid)
        return None if provider_id is None else self._reading_of_provider[provider_id]

    # --- Hosts ------------------------------------------------------------------------------------------------------

    def _put_host(self, host: HostRow) -> None:
        self._own_rows()
        row = self._row_of_host.get(host.id)
        if row is None:
            row = self._row_of_host[host.id] = len(self._hosts)
            self._hosts.append(host)
            self._trees.append(None)
            self._resize(row + 1)
            self._names = None
            self._facts = None
        else:
            before = self._hosts[row]
            self._hosts[row] = host
            del self._row_of_node[before.compute_node_uuid]
            if _names_of(before) != _names_of(host):
                self._names = None
            if (before.attributes, before.metadata) != (host.attributes, host.metadata):
                self._facts = None
        self._describe(row)

    def _describe(self, row: int) -> None:
        host = self._hosts[row]
        self._row_of_node[host.compute_node_uuid] = row
        self._alive[row] = host.up
        self._forced_down[row] = host.forced_down
        self._disabled[row] = host.disabled
        self._zone_codes[row] = _code(self._zones, host.availability_zone)
        self._cell_codes[row] = _code(self._cells, host.cell_uuid)
        self._ties[row] = tie_of(host)
        self._under_way[row] = host.io_ops
        self._failures[row] = host.failed_builds
        provider_id = self._ids.get(host.compute_node_uuid)
        self._plant(row, None if provider_id is None else self._forest.tree(provider_id))

    def _drop_host(self, host_id: int) -> None:
        row = self._row_of_host.pop(host_id, None)
        if row is None:
            return
        self._own_rows()
        self._names = None
        self._facts = None
        del self._row_of_node[self._hosts[row].compute_node_uuid]
        end = len(self._hosts) - 1
        self._plant(end, None)
        last = self._hosts.pop()
        if last.id != host_id:
            # The last row moves into the gap.
            self._hosts[row] = last
            self._row_of_host[last.id] = row
            self._describe(row)
        self._trees.pop()
        self._resize(end)

    def _own_rows(self) -> None:
        if self._rows_are_shared:
            self._hosts = list(self._hosts)
            self._trees = list(self._trees)
            self._rows_are_shared = False

    def _resize(self, length: int) -> None:
        columns: list[Column[Any]] = [self._alive, self._forced_down, self._disabled, self._single, self._zone_codes]
        columns += [self._cell_codes, self._ties, self._placed, self._under_way, self._failures]
        for column in columns:
            column.resize(length)
        for names in (self._traits, self._root_traits, self._aggregates):
            names.resize(length)
        self._inventories.resize(length)

    # --- Providers --------------------------------------------------------------------------------------------------

    def _put_provider(self, provider: Provider) -> None:
        id_ = provider.id
        self._unsure.discard(id_)
        self._seqs[id_] = provider.seq
        self._reading_of_provider[id_] = next(self._reading_numbers)
        self._ids[provider.uuid] = id_
        before = self._forest.get(id_)
        self._forest.put(
            Member(
                id=id_,
                uuid=provider.uuid,
                root_id=provider.root_id,
                parent_id=provider.parent_id,
                traits=provider.traits,
                aggregates=provider.aggregates,
                slots=self._inventories.put(before.slots if before else {}, provider.inventories),
            )
        )

    def _drop_provider(self, provider_id: int) -> None:
        member = self._forest.get(provider_id)
        if member is None:
            return
        self._forest.drop(provider_id)
        self._inventories.give_back(member.slots)
        del self._seqs[provider_id], self._reading_of_provider[provider_id]
        self._unsure.discard(provider_id)
        # Deleted and created anew, the same node has another id: only its own one is taken out.
        if self._ids.get(member.uuid) == provider_id:
            del self._ids[member.uuid]
            if (row := self._row_of_node.get(member.uuid)) is not None:
                self._plant(row, None)

    def _replant(self, root_id: int) -> None:
        """Give the host of a root, if it is one's, its tree as it is now."""
        root = self._forest.get(root_id)
        if root is not None and self._ids.get(root.uuid) == root_id:
            row = self._row_of_node.get(root.uuid)
            if row is not None:
                self._plant(row, self._forest.tree(root_id))

    def _plant(self, row: int, tree: Tree | None) -> None:
        before = self._trees[row]
        if tree == before:
            return
        self._own_rows()
        self._index = None
        self._trees[row] = tree
        self._single[row] = tree is not None and tree.is_flat
        self._inventories.place(row, before, tree)
        self._traits.put(row, tree.traits() if tree else frozenset())
        self._root_traits.put(row, tree.own[0].traits if tree else frozenset())
        self._aggregates.put(row, tree.aggregates() if tree else frozenset())


def tie_of(host: HostRow) -> int:
    """Return the number by which a host's ties are broken: the same in every scheduler, whatever was read first."""
    names = f"{host.service_host}\0{host.nodename}".encode()
    return int.from_bytes(hashlib.blake2b(names, digest_size=8).digest())


def _names_of(host: HostRow) -> tuple[str, str, str]:
    """Return that by which a host is found."""
    return host.service_host, host.nodename, host.compute_node_uuid


def _code(codes: dict[str, int], name: str) -> int:
    return codes.setdefault(name, len(codes))
