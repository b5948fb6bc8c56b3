"""The host view against the store, for the operator: what the view has missed for good, and not what it is yet to read.

Between two decisions the view is left as it is; a decision first has it follow the feed of changes. So does the
comparison. What then still differs is what the feed has not told, which the next comparison of everything mends.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import CompareView
from moorage.model.inspection import ViewDrift
from placement_store.db import change_feed
from placement_store.providers import rows as providers
from placement_store.schema import hosts as hosts_table
from placement_store.schema import resource_providers
from scheduler.registry import hosts
from scheduler.view.follower import Follower
from scheduler.view.host_cache import HostCache


@dataclass(frozen=True, slots=True)
class _Seqs:
    """The ``seq`` of every provider and of every host, by id."""

    providers: Mapping[int, int]
    hosts: Mapping[int, int]


class ViewComparison:
    """The endpoint of `compare_view`. It mends nothing: what a decision would not see now, it does not see after."""

    def __init__(self, database: Database, follower: Follower, host_cache: HostCache) -> None:
        self._database = database
        self._follower = follower
        self._host_cache = host_cache

    @serves(CompareView)
    def compare_view(self, _message: CompareView) -> ViewDrift:
        """Name the hosts of which the view has missed a change, and by its uuid a provider that has no host.

        :raises StoreUnavailable: the database cannot be reached.
        """
        # First the store, then the feed, which tells all that was seen there: a writer at work is not taken for drift.
        before = self._database.read(_in_store)
        self._follower.follow(self._follower.now())
        # What was claimed here and not read again yet is ahead of the store's `seq`, whatever that is.
        ahead = dict.fromkeys(self._host_cache.provisional_ids(), sys.maxsize)
        in_view = _Seqs(self._host_cache.provider_seqs() | ahead, self._host_cache.host_seqs())
        names: set[str] = set()
        if _behind(before.providers, in_view.providers) or _behind(before.hosts, in_view.hosts):
            names = self._database.read(lambda connection: self._drifted(connection, before, in_view))
        return ViewDrift(hosts=len(self._host_cache.snapshot()), drifted=tuple(sorted(names)))

    def _drifted(self, connection: Connection, before: _Seqs, in_view: _Seqs) -> set[str]:
        """Return the names of what the view has missed, without what has come or gone meanwhile."""
        after = _in_store(connection)
        provider_ids = _unmoved(_behind(before.providers, in_view.providers), before.providers, after.providers)
        host_ids = _unmoved(_behind(before.hosts, in_view.hosts), before.hosts, after.hosts)
        known = [*self._host_cache.snapshot().hosts, *hosts.rows(connection, host_ids)]
        host_of_node = {host.compute_node_uuid: host.service_host for host in known}
        names = {host.service_host for host in known if host.id in host_ids}
        uuids = self._uuids(connection, provider_ids)
        return names | {host_of_node.get(root, host_of_node.get(uuid, uuid)) for uuid, root in uuids.items()}

    def _uuids(self, connection: Connection, provider_ids: set[int]) -> dict[str, str]:
        """Return the uuids of the roots of these providers by their own, as far as the view or the store knows them."""
        root_of = {member.uuid: member.root_id for member in self._host_cache.members(provider_ids)}
        root_of |= {row.uuid: row.root_id for row in providers.rows(connection, provider_ids)}
        uuids = {member.id: member.uuid for member in self._host_cache.members(set(root_of.values()))}
        uuids |= providers.uuids_of(connection, set(root_of.values()))
        return {uuid: uuids.get(root_id, uuid) for uuid, root_id in root_of.items()}


def _in_store(connection: Connection) -> _Seqs:
    return _Seqs(change_feed.seq_by_id(connection, resource_providers), change_feed.seq_by_id(connection, hosts_table))


def _behind(store: Mapping[int, int], view: Mapping[int, int]) -> set[int]:
    """Return the ids of which the view has an older ``seq`` than the store had, or that only one of the two has."""
    return {id_ for id_, seq in store.items() if view.get(id_, -1) < seq} | (view.keys() - store.keys())


def _unmoved(ids: set[int], before: Mapping[int, int], after: Mapping[int, int]) -> set[int]:
    """Return those that were there both before and after, or neither."""
    return {id_ for id_ in ids if (id_ in before) == (id_ in after)}
