"""The cache of all hosts in memory: what was last read of them, and what has been claimed here since.

It is a cache. Whoever changes it says what was read; whoever decides takes a snapshot. The claim transaction judges.
"""

import itertools
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from moorage.model import Resources
from moorage.plugin import HostInventory
from scheduler.registry.hosts import HostRow
from scheduler.view.host_attributes import HostAttributes
from scheduler.view.host_columns import HostColumns
from scheduler.view.indexes import NameIndex, ProviderIndex
from scheduler.view.inventories import InventoryTable
from scheduler.view.provider_trees import CachedProvider, CachedTree, ProviderTrees
from scheduler.view.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class FetchedProvider:
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
Versions = Mapping[str, int | None]


class HostCache:
    """All hosts as this scheduler knows them. Safe to use from several threads.

    A host is served by the tree whose root is its compute node; a node that is no root serves nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._hosts: list[HostRow] = []
        self._trees: list[CachedTree | None] = []
        self._row_of_host: dict[int, int] = {}
        self._row_of_node: dict[str, int] = {}
        self._seqs: dict[int, int] = {}
        self._ids: dict[str, int] = {}
        self._reading_of_provider: dict[int, int] = {}
        self._reading_numbers = itertools.count()
        self._provisional: set[int] = set()
        self._provider_trees = ProviderTrees()
        self._names: NameIndex | None = None
        self._host_attributes = HostAttributes([])
        #: Of which hosts something else is said than the facts know.
        self._redescribed: set[int] = set()
        self._index: ProviderIndex | None = None
        self._columns = HostColumns()
        #: By root provider, how many instances are placed on it.
        self._instances: dict[int, int] = {}
        self._inventories = InventoryTable()
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
        if self._redescribed or len(self._hosts) != self._host_attributes.hosts:
            self._host_attributes = self._host_attributes.changed(self._hosts, self._redescribed)
            self._redescribed = set()
        return Snapshot(
            hosts=self._hosts,
            trees=self._trees,
            names=self._names,
            index=self._index,
            **self._columns.frozen(),
            classes=self._inventories.frozen(),
            host_attributes=self._host_attributes,
            members=None,
            neighbours={},
        )

    # --- What followers compare and change --------------------------------------------------------------------------

    def provider_seqs(self) -> dict[int, int]:
        """Return the ``seq`` at which each provider was last read, by id, :meth:`provisional_ids` included."""
        with self._lock:
            return dict(self._seqs)

    def host_seqs(self) -> dict[int, int]:
        """Return the ``seq`` of every host by id."""
        with self._lock:
            return {host.id: host.seq for host in self._hosts}

    def provisional_ids(self) -> set[int]:
        """Return the ids of the providers that have been claimed from here since they were last read."""
        with self._lock:
            return set(self._provisional)

    def root_ids(self, uuids: Collection[str]) -> set[int]:
        """Return the ids of the roots of these providers' trees, as far as they are known."""
        with self._lock:
            known = (self._provider_trees.get(self._ids[uuid]) for uuid in uuids if uuid in self._ids)
            return {member.root_id for member in known if member}

    def tree_ids(self, root_ids: Collection[int]) -> set[int]:
        """Return the ids of all known providers of these trees."""
        with self._lock:
            return self._provider_trees.ids_under(root_ids)

    def members(self, ids: Collection[int]) -> list[CachedProvider]:
        """Return those of these providers that are known."""
        with self._lock:
            return [member for id_ in ids if (member := self._provider_trees.get(id_))]

    def update(
        self,
        *,
        hosts: Iterable[HostRow] = (),
        gone_hosts: Iterable[int] = (),
        providers: Iterable[FetchedProvider] = (),
        gone_providers: Iterable[int] = (),
        instances: Mapping[int, int] | None = None,
    ) -> None:
        """Take over what was read; what was read without being found is gone.

        :param instances: how many are placed on root providers, by id; read after any of these providers was.
        """
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
            for root_id in self._provider_trees.take_changed():
                self._replant(root_id)
            for root_id, count in (instances or {}).items():
                self._count(root_id, count)

    def versions(self, uuids: Collection[str]) -> Versions:
        """Return which reading of each provider is shown, to be kept while claiming."""
        with self._lock:
            return {uuid: self._reading_of(uuid) for uuid in uuids}

    def apply_claims(
        self, claims: Iterable[tuple[str, Resources]], versions: Versions, placed: Mapping[str, int] | None = None
    ) -> None:
        """Show at once what was claimed here of some providers.

        :param placed: how many instances more are on root providers, by uuid.
        :param versions: those shown before the claim's transaction began. A provider that was read anew since may show
            the claim already. Counting it twice would hide room that there is, so there it waits for the next reading.
        """
        with self._lock:
            self._snapshot = None
            for uuid, resources in claims:
                reading = self._reading_of(uuid)
                if reading is None:
                    continue
                self._provisional.add(self._ids[uuid])
                member = self._provider_trees.get(self._ids[uuid])
                if member and reading == versions.get(uuid):
                    self._inventories.use(member.slots, resources)
            for uuid, count in (placed or {}).items():
                reading = self._reading_of(uuid)
                if reading is None:
                    continue
                root_id = self._ids[uuid]
                self._provisional.add(root_id)
                if reading == versions.get(uuid):
                    self._show_instances(root_id, self._instances.get(root_id, 0) + count)

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
            self._redescribed.add(row)
        else:
            before = self._hosts[row]
            self._hosts[row] = host
            if _names_of(before) != _names_of(host):
                self._names = None
            if _said_of(before) != _said_of(host):
                self._redescribed.add(row)
            if before.compute_node_uuid == host.compute_node_uuid:
                # Its tree is the same: mostly a host says something else of itself, and of thousands many always do.
                self._columns.describe(row, host)
                return
            del self._row_of_node[before.compute_node_uuid]
        self._describe(row)

    def _describe(self, row: int) -> None:
        host = self._hosts[row]
        self._row_of_node[host.compute_node_uuid] = row
        self._columns.describe(row, host)
        provider_id = self._ids.get(host.compute_node_uuid)
        self._plant(row, None if provider_id is None else self._provider_trees.tree(provider_id))

    def _drop_host(self, host_id: int) -> None:
        row = self._row_of_host.pop(host_id, None)
        if row is None:
            return
        self._own_rows()
        self._names = None
        del self._row_of_node[self._hosts[row].compute_node_uuid]
        end = len(self._hosts) - 1
        self._redescribed.discard(end)
        self._plant(end, None)
        last = self._hosts.pop()
        if last.id != host_id:
            # The last row moves into the gap.
            self._hosts[row] = last
            self._row_of_host[last.id] = row
            self._redescribed.add(row)
            self._describe(row)
        self._trees.pop()
        self._resize(end)

    def _own_rows(self) -> None:
        if self._rows_are_shared:
            self._hosts = list(self._hosts)
            self._trees = list(self._trees)
            self._rows_are_shared = False

    def _resize(self, length: int) -> None:
        self._columns.resize(length)
        self._inventories.resize(length)

    # --- Providers --------------------------------------------------------------------------------------------------

    def _put_provider(self, provider: FetchedProvider) -> None:
        id_ = provider.id
        self._provisional.discard(id_)
        self._seqs[id_] = provider.seq
        self._reading_of_provider[id_] = next(self._reading_numbers)
        self._ids[provider.uuid] = id_
        before = self._provider_trees.get(id_)
        self._provider_trees.put(
            CachedProvider(
                id=id_,
                uuid=provider.uuid,
                root_id=provider.root_id,
                parent_id=provider.parent_id,
                traits=provider.traits,
                aggregates=provider.aggregates,
                slots=self._inventories.put(before.slots if before else {}, provider.inventories),
            )
        )

    def _count(self, root_id: int, instances: int) -> None:
        """Take over how many instances are on a root provider; of one that is not known yet, they come with it."""
        if root_id in self._reading_of_provider:
            self._reading_of_provider[root_id] = next(self._reading_numbers)
            self._show_instances(root_id, instances)

    def _show_instances(self, root_id: int, instances: int) -> None:
        self._instances[root_id] = instances
        row = self._row_of_root(root_id)
        if row is not None:
            self._columns.count(row, instances)

    def _row_of_root(self, root_id: int) -> int | None:
        """Return the row of the host that a root is the compute node of, if it is one's."""
        root = self._provider_trees.get(root_id)
        if root is None or self._ids.get(root.uuid) != root_id:
            return None
        return self._row_of_node.get(root.uuid)

    def _drop_provider(self, provider_id: int) -> None:
        member = self._provider_trees.get(provider_id)
        if member is None:
            return
        self._provider_trees.drop(provider_id)
        self._inventories.give_back(member.slots)
        del self._seqs[provider_id], self._reading_of_provider[provider_id]
        self._instances.pop(provider_id, None)
        self._provisional.discard(provider_id)
        # Deleted and created anew, the same node has another id: only its own one is taken out.
        if self._ids.get(member.uuid) == provider_id:
            del self._ids[member.uuid]
            if (row := self._row_of_node.get(member.uuid)) is not None:
                self._plant(row, None)

    def _replant(self, root_id: int) -> None:
        """Give the host of a root, if it is one's, its tree as it is now."""
        row = self._row_of_root(root_id)
        if row is not None:
            self._plant(row, self._provider_trees.tree(root_id))

    def _plant(self, row: int, tree: CachedTree | None) -> None:
        before = self._trees[row]
        if tree == before:
            return
        self._own_rows()
        self._index = None
        self._trees[row] = tree
        self._columns.plant(row, tree)
        self._columns.count(row, self._instances.get(tree.own[0].id, 0) if tree else 0)
        self._inventories.place(row, before, tree)


def _names_of(host: HostRow) -> tuple[str, str, str]:
    """Return that by which a host is found."""
    return host.service_host, host.nodename, host.compute_node_uuid


def _said_of(host: HostRow) -> tuple[Mapping[str, object], ...]:
    """Return what :class:`HostAttributes` knows of a host."""
    return host.attributes, host.metadata, host.image_properties
