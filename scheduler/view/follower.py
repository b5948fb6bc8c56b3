"""Keep the host cache up to date with the store: cheaply by the change feed, completely by comparing every ``seq``.

The feed may miss a change whose transaction took long between its number in the feed and its commit; the comparison
finds it. Sums over all rows show at a small part of its cost that there is nothing to find. Threads share reads: a read
that began after a thread asked for one is good enough for that thread.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping

from sqlalchemy import Connection

from moorage import errors, metrics
from moorage.db.database import LOCK_PATIENCE, BoundedLock, Database
from moorage.plugin import HostInventory
from placement_store.allocations import placed
from placement_store.db import change_feed
from placement_store.db.names import ResourceClassNames
from placement_store.providers import aggregates, traits
from placement_store.providers import rows as providers
from placement_store.schema import hosts as hosts_table
from placement_store.schema import resource_providers
from scheduler.registry import hosts
from scheduler.view.host_cache import HostCache
from scheduler.view.provider_trees import FetchedProvider

LOG = logging.getLogger(__name__)


def _not_read(seconds: float) -> errors.StoreUnavailable:
    return errors.StoreUnavailable(schema="main", reason=f"a reading of all hosts has not ended within {seconds:g} s")


class Follower:
    """Keeps the host cache up to date with the store. Safe to use from several threads.

    :param patience: seconds that a thread waits for the read of another thread.
    """

    def __init__(
        self, database: Database, names: ResourceClassNames, host_cache: HostCache, patience: float = LOCK_PATIENCE
    ) -> None:
        self._database = database
        self._names = names
        self._host_cache = host_cache
        # The number of the feed to continue from, and the missing numbers that are waited for.
        self._last_change = 0
        self._gaps: Mapping[int, float] = {}
        # One read at a time: an older read must not overwrite a newer one in the cache.
        self._lock = BoundedLock(_not_read, patience)
        #: When the last read of the feed, the last read that found all changes, and the last comparison began.
        self._followed = self._caught_up = self._compared = float("-inf")

    def now(self) -> float:
        """Return the time of the clock that ``begun_after`` refers to."""
        return time.monotonic()

    def age(self) -> float:
        """Return the seconds since the last read of the feed, or the last comparison, began; infinite before it."""
        return time.monotonic() - self._followed

    def follow(self, begun_after: float) -> None:
        """Read the changes in the feed, unless a read that began at ``begun_after`` or later has done so.

        :raises StoreUnavailable: the database cannot be reached.
        """
        self._once_since(begun_after, lambda: self._followed, self._follow_since)

    def catch_up(self, begun_after: float) -> None:
        """Make sure that no change is missing, unless a read that began at ``begun_after`` or later has done so.

        Every ``seq`` is compared only if the sums over all rows differ after the feed was read.

        :raises StoreUnavailable: the database cannot be reached.
        """
        self._once_since(begun_after, lambda: self._caught_up, self._catch_up_since)

    def compare(self, begun_after: float) -> None:
        """Compare every ``seq`` with the store, unless a comparison that began at ``begun_after`` or later has done so.

        :raises StoreUnavailable: the database cannot be reached.
        """
        self._once_since(begun_after, lambda: self._compared, self._compare_since)

    def _once_since(self, begun_after: float, last: Callable[[], float], read: Callable[[float], None]) -> None:
        """Carry out a read, unless the last one of its kind began at ``begun_after`` or later.

        :param read: gets the time before the read: a change that is committed during the read may be missing.
        """
        if last() >= begun_after:
            return
        with self._lock.held():
            # Check again: the thread that had the lock may have begun late enough.
            if last() < begun_after:
                read(time.monotonic())

    def _follow_since(self, begun: float) -> None:
        self._database.read(self._read_feed)
        self._followed = begun

    def _catch_up_since(self, begun: float) -> None:
        is_first = self._compared == float("-inf")
        if is_first or not self._database.read_one_moment(self._read_feed_and_check):
            self._compare_since(begun)
        else:
            self._followed = self._caught_up = begun

    def _compare_since(self, begun: float) -> None:
        self._database.read(self._compare)
        self._followed = self._caught_up = self._compared = begun

    def refresh(self, provider_uuids: Collection[str]) -> None:
        """Re-read the trees of providers that have just refused a claim.

        The whole trees are read: inventory may have moved to a child provider that the cache does not have yet.

        :raises StoreUnavailable: the database cannot be reached.
        """

        def work(connection: Connection) -> None:
            roots = self._host_cache.root_ids(provider_uuids)
            # Read the providers of the cache and those of the store: some may be deleted, others new.
            known = self._host_cache.tree_ids(roots)
            self._reread(connection, known.union(providers.tree_ids(connection, roots)))

        with self._lock.held():
            self._database.read(work)

    def _read_feed(self, connection: Connection) -> None:
        expected = self._host_cache.expected()
        found = self._unread(connection)
        if found.is_another_history:
            self._read_everything(connection)
            return
        if found.is_pruned:
            LOG.info("The change feed was pruned before it was read: the host view is compared with the store")
            self._compare(connection)
            return
        # Include provisional providers: the feed may have had their change before the claim was added to the cache.
        unseen = self._host_cache.provisional_ids() - found.provider_seqs.keys()
        seqs = {**dict.fromkeys(unseen), **found.provider_seqs, **change_feed.seq_of(connection, unseen)}
        self._reread(connection, self._host_cache.settle(expected, seqs), found.host_ids)
        self._go_on_from(found)

    def _unread(self, connection: Connection) -> change_feed.Changes:
        return change_feed.changes_since(connection, self._last_change, self._gaps)

    def _go_on_from(self, found: change_feed.Changes) -> None:
        self._last_change, self._gaps = found.go_on_from, found.gaps

    def _read_feed_and_check(self, connection: Connection) -> bool:
        """Read the feed, and return whether the cache then has the rows of the store, by their sums.

        All statements read the same snapshot, so a change that is committed meanwhile makes no difference.
        """
        self._read_feed(connection)
        sums = change_feed.sums(connection, resource_providers), change_feed.sums(connection, hosts_table)
        return self._host_cache.sums() == sums

    def _read_everything(self, connection: Connection) -> None:
        """Replace the whole cache: the store has been restored, and its ids and ``seq`` may mean other rows."""
        LOG.warning("The store was restored: everything is read again")
        self._names.forget_numbers()
        # Read the position in the feed before everything else: a change during the other reads is read again later.
        recent = change_feed.recent_changes(connection)
        known_providers, known_hosts = self._host_cache.provider_seqs().keys(), self._host_cache.host_seqs().keys()
        found_providers = self._read_providers(connection, change_feed.seq_by_id(connection, resource_providers).keys())
        self._host_cache.update(
            hosts=hosts.rows(connection, change_feed.seq_by_id(connection, hosts_table).keys()),
            gone_hosts=list(known_hosts),
            providers=found_providers,
            # All ids: an id may belong to another provider now.
            gone_providers=list(known_providers),
            instances=placed.instances_on(connection, {provider.root_id for provider in found_providers}),
        )
        self._go_on_from(recent)

    def _compare(self, connection: Connection) -> None:
        # Do not test `_last_change`: it is also 0 if the whole feed has been pruned.
        is_first = self._compared == float("-inf")
        unread = None if is_first else self._unread(connection)
        if unread is not None and unread.is_another_history:
            self._read_everything(connection)
            return
        # Read the position before everything else: later changes come after it in the feed.
        known = unread if unread is not None and not unread.is_pruned else None
        position = known or change_feed.recent_changes(connection)
        provisional = self._host_cache.provisional_ids()
        provider_ids = change_feed.differing_ids(connection, resource_providers, self._host_cache.provider_seqs())
        host_ids = change_feed.differing_ids(connection, hosts_table, self._host_cache.host_seqs())
        if known is not None:
            self._note_drift(connection, provider_ids - provisional, host_ids)
        self._reread(connection, provider_ids | provisional, host_ids)
        self._go_on_from(position)

    def _note_drift(self, connection: Connection, provider_ids: Collection[int], host_ids: Collection[int]) -> None:
        """Count the differing rows that the feed has not contained until now."""
        if not provider_ids and not host_ids:
            return
        found = self._unread(connection)
        if found.is_pruned:
            return  # it may have contained them
        drifted = len(set(provider_ids) - found.provider_seqs.keys()) + len(set(host_ids) - found.host_ids)
        metrics.VIEW_DRIFT.inc(drifted)
        if drifted:
            LOG.warning("The comparison has found %d row(s) that the change feed had missed", drifted)

    def _reread(self, connection: Connection, provider_ids: Collection[int], host_ids: Collection[int] = ()) -> None:
        """Read rows by id and write them into the cache; an id without a row is removed from it."""
        if not provider_ids and not host_ids:
            return
        found_providers = self._read_providers(connection, provider_ids)
        found_hosts = hosts.rows(connection, host_ids)
        self._host_cache.update(
            hosts=found_hosts,
            gone_hosts=set(host_ids) - {host.id for host in found_hosts},
            providers=found_providers,
            gone_providers=set(provider_ids) - {provider.id for provider in found_providers},
            # Read the counts after the providers: a count that is newer than their `seq` is read again with the next
            # `seq`. In the opposite order, a count could stay older than its `seq`.
            instances=placed.instances_on(connection, {provider.root_id for provider in found_providers}),
        )

    def _read_providers(self, connection: Connection, ids: Collection[int]) -> list[FetchedProvider]:
        # Read the rows first: then traits and aggregates can only be newer than `seq`, and the next `seq` brings them.
        rows = providers.rows(connection, ids)
        traits_of, aggregates_of = traits.of(connection, ids), aggregates.of(connection, ids)
        return [
            FetchedProvider(
                id=row.id,
                uuid=row.uuid,
                seq=row.seq,
                root_id=row.root_id,
                parent_id=row.parent_id,
                inventories={
                    self._names.name_of(class_id, connection): HostInventory(*inventory)
                    for class_id, inventory in row.inventories.items()
                },
                traits=traits_of.get(row.id, frozenset()),
                aggregates=aggregates_of.get(row.id, frozenset()),
            )
            for row in rows
        ]
