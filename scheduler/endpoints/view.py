"""The endpoints of the host view: compare it with the store, and bring it up to date with the store.

The view may be behind the store: a decision first makes it follow the change feed, and so does `compare_view`. A
difference that remains is a change that the feed has missed. The next comparison of every ``seq`` repairs it.
"""

import sys
from collections.abc import Mapping

from sqlalchemy import Connection, Table

from moorage.bus.bus import serves
from moorage.messages import CatchUpView, CompareView, ViewCaughtUp
from moorage.model.inspection import ViewDrift
from placement_store.db import change_feed
from placement_store.providers import rows as providers
from placement_store.schema import hosts as hosts_table
from placement_store.schema import resource_providers
from scheduler.decide.environment import DecisionEnvironment
from scheduler.decide.in_flight import InFlight
from scheduler.registry import hosts

#: The ``seq`` of every row by id, of both tables that the view follows.
_Seqs = Mapping[Table, Mapping[int, int]]
_TABLES = (resource_providers, hosts_table)


class ViewEndpoint:
    """The endpoint of `catch_up_view` and `compare_view`."""

    def __init__(self, environment: DecisionEnvironment, decisions: InFlight) -> None:
        self._database = environment.database
        self._follower = environment.follower
        self._host_cache = environment.host_cache
        self._decisions = decisions

    @serves(CatchUpView)
    def catch_up_view(self, message: CatchUpView) -> ViewCaughtUp:
        """Answer :class:`~moorage.messages.CatchUpView`.

        :raises StoreUnavailable: the database cannot be reached.
        """
        # The feed alone may miss a change whose transaction took long.
        self._follower.catch_up(self._follower.now())
        # Wait only after that: a decision that begins from now on sees the new state, an earlier one may not.
        return ViewCaughtUp(undecided=self._decisions.wait(message.patience))

    @serves(CompareView)
    def compare_view(self, _message: CompareView) -> ViewDrift:
        """Return the names of the hosts with changes that the view has missed; the uuid of a provider without a host.

        Nothing is repaired: the view stays as the next decision would see it.

        :raises StoreUnavailable: the database cannot be reached.
        """
        # Read the store before the feed: the feed then has every change that this read has seen, so that a concurrent
        # write is not reported as drift.
        before = self._database.read(_seqs_in_store)
        self._follower.follow(self._follower.now())
        # A provider with a claim of this scheduler since its last read counts as newer than any `seq` in the store.
        ahead = dict.fromkeys(self._host_cache.provisional_ids(), sys.maxsize)
        in_view = {
            resource_providers: self._host_cache.provider_seqs() | ahead,
            hosts_table: self._host_cache.host_seqs(),
        }
        behind = {table: _behind(before[table], in_view[table]) for table in _TABLES}
        names: set[str] = set()
        if any(behind.values()):
            names = self._database.read(lambda connection: self._drifted(connection, before, behind))
        return ViewDrift(hosts=len(self._host_cache.snapshot()), drifted=tuple(sorted(names)))

    def _drifted(self, connection: Connection, before: _Seqs, behind: Mapping[Table, set[int]]) -> set[str]:
        """Return the names of the hosts that have drifted, without those created or deleted meanwhile."""
        after = _seqs_in_store(connection)
        provider_ids, host_ids = (
            {id_ for id_ in behind[table] if (id_ in before[table]) == (id_ in after[table])} for table in _TABLES
        )
        known = [*self._host_cache.snapshot().hosts, *hosts.rows(connection, host_ids)]
        host_of_node = {host.compute_node_uuid: host.service_host for host in known}
        names = {host.service_host for host in known if host.id in host_ids}
        root_of = self._root_uuids(connection, provider_ids)
        return names | {host_of_node.get(root, host_of_node.get(uuid, uuid)) for uuid, root in root_of.items()}

    def _root_uuids(self, connection: Connection, provider_ids: set[int]) -> dict[str, str]:
        """Return the root's uuid for each provider, by the provider's uuid, from the view or the store."""
        root_of = {provider.uuid: provider.root_id for provider in self._host_cache.providers(provider_ids)}
        root_of |= {row.uuid: row.root_id for row in providers.rows(connection, provider_ids)}
        uuids = {provider.id: provider.uuid for provider in self._host_cache.providers(set(root_of.values()))}
        uuids |= providers.uuids_of(connection, set(root_of.values()))
        return {uuid: uuids.get(root_id, uuid) for uuid, root_id in root_of.items()}


def _seqs_in_store(connection: Connection) -> _Seqs:
    return {table: change_feed.seq_by_id(connection, table) for table in _TABLES}


def _behind(store: Mapping[int, int], view: Mapping[int, int]) -> set[int]:
    """Return the ids of rows whose ``seq`` is older in the view than in the store, or that only one of them has."""
    return {id_ for id_, seq in store.items() if view.get(id_, -1) < seq} | (view.keys() - store.keys())
