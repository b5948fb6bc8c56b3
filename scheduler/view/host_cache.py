"""The cache of all hosts in memory: their state as last read, plus the claims made by this scheduler since.

The follower writes what it has read; decisions take immutable snapshots. The cache may be stale: only the claim
transaction decides whether a host has room.
"""

import itertools
import threading
from collections.abc import Collection, Iterable, Mapping

from placement_store.db.change_feed import TableSums
from scheduler.registry.hosts import HostRow
from scheduler.view.host_attributes import HostAttributes
from scheduler.view.host_columns import HostColumns
from scheduler.view.indexes import NameIndex, ProviderIndex
from scheduler.view.inventories import InventoryTable
from scheduler.view.provider_trees import CachedProvider, CachedTree, FetchedProvider, ProviderTrees
from scheduler.view.provisional import AddedClaims, Expected, ProvisionalProviders, Versions
from scheduler.view.snapshot import RowChanges, Snapshot


class HostCache:
    """All hosts of the cloud with their provider trees. Safe to use from several threads.

    The provider tree of a host is the tree whose root is its compute node. A host whose compute node is not a root has
    no tree.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._hosts: list[HostRow] = []
        self._trees: list[CachedTree | None] = []
        self._row_of_host: dict[int, int] = {}
        self._row_of_node: dict[str, int] = {}
        self._seqs: dict[int, int] = {}
        self._ids: dict[str, int] = {}
        self._version_of_id: dict[int, int] = {}
        self._next_versions = itertools.count()
        self._provisional = ProvisionalProviders()
        self._provider_trees = ProviderTrees()
        self._names: NameIndex | None = None
        self._host_attributes = HostAttributes([])
        #: The rows whose attributes or metadata are newer than in ``_host_attributes``.
        self._changed_rows: set[int] = set()
        self._index: ProviderIndex | None = None
        self._columns = HostColumns()
        #: The number of instances placed on each root provider, by id.
        self._instances: dict[int, int] = {}
        self._inventories = InventoryTable()
        self._snapshot: Snapshot | None = None
        self._rows_are_shared = False
        self._changes = RowChanges()

    # --- Snapshots --------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return all hosts in their present state; the same object until something changes."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = self._new_snapshot()
            return self._snapshot

    def _new_snapshot(self) -> Snapshot:
        # The indexes are lazy, and several snapshots may share them: only a change of names or trees drops them.
        if self._names is None:
            self._names = NameIndex(self._hosts)
        if self._index is None:
            self._index = ProviderIndex(self._trees)
        # The snapshot shares these lists: the next write copies them first.
        self._rows_are_shared = True
        if self._changed_rows or len(self._hosts) != len(self._host_attributes.hosts):
            self._host_attributes = self._host_attributes.updated(self._hosts, self._changed_rows)
            self._changed_rows = set()
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
            changes=self._changes,
            position=self._changes.position,
            planned_changes=(),
            expected_claims=0,
        )

    # --- Reads and writes of the follower ---------------------------------------------------------------------------

    def provider_seqs(self) -> dict[int, int]:
        """Return the ``seq`` at which each provider was last read, by id, :meth:`provisional_ids` included."""
        with self._lock:
            return dict(self._seqs)

    def host_seqs(self) -> dict[int, int]:
        """Return the ``seq`` at which each host was last read, by id."""
        with self._lock:
            return {host.id: host.seq for host in self._hosts}

    def sums(self) -> tuple[TableSums, TableSums]:
        """Return the sums of the ids and the ``seq`` at which all providers, and all hosts, were last read."""
        with self._lock:
            host_ids, host_seqs = (host.id for host in self._hosts), (host.seq for host in self._hosts)
            return (
                TableSums(len(self._seqs), sum(self._seqs), sum(self._seqs.values())),
                TableSums(len(self._hosts), sum(host_ids), sum(host_seqs)),
            )

    def provisional_ids(self) -> set[int]:
        """Return the ids of the providers with claims of this scheduler since their last read."""
        with self._lock:
            return self._provisional.ids

    def expected(self) -> dict[int, Expected]:
        """Return the expected state of provisional providers, by id; taken before a read, and settled after it."""
        with self._lock:
            return self._provisional.expected(self._seqs)

    def settle(self, expected: Mapping[int, Expected], found: Mapping[int, int | None]) -> set[int]:
        """Compare providers with their ``seq`` in the store, and return the ids of those that need to be read.

        A provider with the expected ``seq`` is not read again: its state is what was read last, plus the added claims.
        The transactions of these claims were committed before the read, so only they can have bumped the ``seq``.

        :param found: the ``seq`` by id, null for a provider that is gone; read after ``expected`` was taken.
        """
        differing = set()
        with self._lock:
            for id_, seq in found.items():
                if seq is not None and id_ in expected and expected[id_].seq == seq:
                    self._seqs[id_] = seq
                    self._provisional.settle(id_, expected[id_].transactions)
                elif seq is None or id_ in self._provisional or self._seqs.get(id_) != seq:
                    differing.add(id_)
        return differing

    def root_ids(self, uuids: Collection[str]) -> set[int]:
        """Return the root ids of these providers' trees; unknown providers are left out."""
        with self._lock:
            known = (self._provider_trees.get(self._ids[uuid]) for uuid in uuids if uuid in self._ids)
            return {provider.root_id for provider in known if provider}

    def tree_ids(self, root_ids: Collection[int]) -> set[int]:
        """Return the ids of all known providers of these trees."""
        with self._lock:
            return self._provider_trees.ids_under(root_ids)

    def providers(self, ids: Collection[int]) -> list[CachedProvider]:
        """Return the providers of these ids; unknown ones are left out."""
        with self._lock:
            return [provider for id_ in ids if (provider := self._provider_trees.get(id_))]

    def update(
        self,
        *,
        hosts: Iterable[HostRow] = (),
        gone_hosts: Iterable[int] = (),
        providers: Iterable[FetchedProvider] = (),
        gone_providers: Iterable[int] = (),
        instances: Mapping[int, int] | None = None,
    ) -> None:
        """Write hosts and providers that were read, and remove those that a read did not find.

        :param instances: the number of instances placed on root providers, by id; read after the providers.
        """
        with self._lock:
            self._snapshot = None
            for host_id in gone_hosts:
                self._drop_host(host_id)
            hosts = list(hosts)
            if new := {host.id for host in hosts} - self._row_of_host.keys():
                self._resize(len(self._hosts) + len(new))
            for host in hosts:
                self._put_host(host)
            for provider_id in gone_providers:
                self._drop_provider(provider_id)
            for provider in providers:
                self._put_provider(provider)
            # Build the trees last: each is built once, after all of its providers are in place.
            for root_id in self._provider_trees.pop_changed_roots():
                if (row := self._row_of_root(root_id)) is not None:
                    self._set_tree(row, self._provider_trees.tree(root_id))
            for root_id, count in (instances or {}).items():
                self._put_instances(root_id, count)

    def versions(self, uuids: Collection[str]) -> Versions:
        """Return the version of each provider; taken before a claim, for :meth:`apply_claims` after it."""
        with self._lock:
            return {uuid: self._version_of_id[self._ids[uuid]] if uuid in self._ids else None for uuid in uuids}

    def apply_claims(self, requests: Iterable[AddedClaims], *, bumped_once: bool = False) -> None:
        """Add the claims of one committed transaction to the cache, before they are read from the store.

        The requests of a transaction are added together: if the follower settled the transaction between two of them,
        the second one would count its bump of the ``seq`` once more.

        :param bumped_once: whether the transaction has bumped the ``seq`` of each claimed provider by exactly one.
        """
        transaction = object() if bumped_once else None
        with self._lock:
            self._snapshot = None
            for amounts, versions, placed in requests:
                for uuid, resources in amounts:
                    id_ = self._claimed_id(uuid, versions, transaction)
                    if id_ is not None and (provider := self._provider_trees.get(id_)):
                        self._inventories.use(provider.slots, resources)
                        self._note_change(provider)
                for uuid, count in placed.items():
                    id_ = self._claimed_id(uuid, versions, transaction, bumped=False)
                    if id_ is not None:
                        self._write_instances(id_, self._instances.get(id_, 0) + count)

    def _claimed_id(self, uuid: str, versions: Versions, transaction: object, bumped: bool = True) -> int | None:
        """Mark a provider as provisional, and return its id unless it was read since these versions.

        A provider that was read since may already contain the claim, and counting it twice would hide free room. If it
        does not, the next read adds the claim.
        """
        id_ = self._ids.get(uuid)
        if id_ is None:
            return None
        is_as_read = self._version_of_id[id_] == versions.get(uuid)
        self._provisional.add(id_, transaction if is_as_read else None, bumped=bumped)
        return id_ if is_as_read else None

    # --- Hosts ------------------------------------------------------------------------------------------------------

    def _put_host(self, host: HostRow) -> None:
        self._copy_shared_rows()
        row = self._row_of_host.get(host.id)
        if row is None:
            row = self._row_of_host[host.id] = len(self._hosts)
            self._hosts.append(host)
            self._trees.append(None)
            self._names = None
            self._changed_rows.add(row)
        else:
            before = self._hosts[row]
            self._hosts[row] = host
            if before.metadata == host.metadata:
                self._changes.add(row)
            else:
                # Metadata may contain multipliers of weighers, and so change the weights of other hosts as well.
                self._changes.forget()
            if _names_of(before) != _names_of(host):
                self._names = None
            if _described(before) != _described(host):
                self._changed_rows.add(row)
            if before.compute_node_uuid == host.compute_node_uuid:
                # The tree stays. This is the usual case: some of thousands of hosts always have a new description.
                self._columns.set_host(row, host)
                return
            del self._row_of_node[before.compute_node_uuid]
        self._row_of_node[host.compute_node_uuid] = row
        self._fill_row(row)

    def _fill_row(self, row: int) -> None:
        """Write the columns and the tree of the host of a row."""
        host = self._hosts[row]
        self._columns.set_host(row, host)
        provider_id = self._ids.get(host.compute_node_uuid)
        self._set_tree(row, None if provider_id is None else self._provider_trees.tree(provider_id))

    def _drop_host(self, host_id: int) -> None:
        row = self._row_of_host.pop(host_id, None)
        if row is None:
            return
        self._copy_shared_rows()
        self._names = None
        node = self._hosts[row].compute_node_uuid
        # A host that was deleted and registered again has a new id with the same node: keep the entry of the new one.
        if self._row_of_node.get(node) == row:
            del self._row_of_node[node]
        end = len(self._hosts) - 1
        self._changed_rows.discard(end)
        # Free the slots of the last row before it is cut off.
        self._set_tree(end, None)
        last = self._hosts.pop()
        if last.id != host_id:
            # The last row moves into the gap, so that columns have none.
            self._hosts[row] = last
            self._row_of_host[last.id] = row
            if self._row_of_node.get(last.compute_node_uuid) == end:
                self._row_of_node[last.compute_node_uuid] = row
            self._changed_rows.add(row)
            self._fill_row(row)
        self._trees.pop()
        self._resize(end)

    def _copy_shared_rows(self) -> None:
        """Copy the lists that the last snapshot uses, before the first write after it."""
        if self._rows_are_shared:
            self._hosts = list(self._hosts)
            self._trees = list(self._trees)
            self._rows_are_shared = False

    def _resize(self, length: int) -> None:
        # Rows are new, or belong to other hosts now.
        self._changes.forget()
        self._columns.resize(length)
        self._inventories.resize(length)

    # --- Providers --------------------------------------------------------------------------------------------------

    def _put_provider(self, provider: FetchedProvider) -> None:
        id_ = provider.id
        self._provisional.remove(id_)
        self._seqs[id_] = provider.seq
        self._version_of_id[id_] = next(self._next_versions)
        self._ids[provider.uuid] = id_
        before = self._provider_trees.get(id_)
        # An inventory keeps its slot from read to read: trees and hosts that refer to it stay as they are.
        after = CachedProvider(
            id=id_,
            uuid=provider.uuid,
            root_id=provider.root_id,
            parent_id=provider.parent_id,
            # Keep the same set object: many providers share one set of a hundred traits.
            traits=before.traits if before and before.traits == provider.traits else provider.traits,
            aggregates=provider.aggregates,
            slots=self._inventories.put(before.slots if before else {}, provider.inventories),
        )
        self._provider_trees.put(after)
        self._note_change(after)

    def _note_change(self, provider: CachedProvider) -> None:
        """Note a change of the amounts of a provider; a change of a tree is noted where the tree is written."""
        if provider.shares:
            # It may serve any number of hosts.
            self._changes.forget()
        elif (row := self._row_of_root(provider.root_id)) is not None:
            self._changes.add(row)

    def _put_instances(self, root_id: int, instances: int) -> None:
        """Write the number of instances that was read for a root provider; an unknown one gets it when it is read."""
        if root_id in self._version_of_id:
            self._version_of_id[root_id] = next(self._next_versions)
            self._write_instances(root_id, instances)

    def _write_instances(self, root_id: int, instances: int) -> None:
        self._instances[root_id] = instances
        row = self._row_of_root(root_id)
        if row is not None:
            self._columns.set_instances(row, instances)
            self._changes.add(row)

    def _row_of_root(self, root_id: int) -> int | None:
        """Return the row of the host whose compute node a root provider is, or None."""
        root = self._provider_trees.get(root_id)
        if root is None or self._ids.get(root.uuid) != root_id:
            return None
        return self._row_of_node.get(root.uuid)

    def _drop_provider(self, provider_id: int) -> None:
        provider = self._provider_trees.get(provider_id)
        if provider is None:
            return
        self._provider_trees.drop(provider_id)
        self._inventories.release(provider.slots)
        del self._seqs[provider_id], self._version_of_id[provider_id]
        self._instances.pop(provider_id, None)
        self._provisional.remove(provider_id)
        # A provider that was deleted and created again has a new id for the same uuid: keep the new id and its tree.
        if self._ids.get(provider.uuid) == provider_id:
            del self._ids[provider.uuid]
        row = self._row_of_node.get(provider.uuid)
        if row is not None and (tree := self._trees[row]) is not None and tree.own[0].id == provider_id:
            self._set_tree(row, None)

    def _set_tree(self, row: int, tree: CachedTree | None) -> None:
        before = self._trees[row]
        if tree == before:
            return
        self._copy_shared_rows()
        self._index = None
        self._trees[row] = tree
        self._changes.add(row)
        self._columns.set_tree(row, tree)
        self._columns.set_instances(row, self._instances.get(tree.own[0].id, 0) if tree else 0)
        self._inventories.set_slots(row, before, tree)


def _names_of(host: HostRow) -> tuple[str, str, str]:
    """Return the keys of a host in :class:`NameIndex`."""
    return host.service_host, host.nodename, host.compute_node_uuid


def _described(host: HostRow) -> str:
    """Return the part of a host that :class:`HostAttributes` has columns of.

    It is text because 1, 1.0 and true are equal in Python, but different values of a column.
    """
    return repr((host.attributes, host.metadata, host.image_properties))
