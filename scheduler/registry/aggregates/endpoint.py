"""The methods of topic `scheduler` about host aggregates."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TypeVar

from sqlalchemy import Connection

from moorage import errors
from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import (
    AddAggregateHost,
    CreateHostAggregate,
    DeleteHostAggregate,
    Done,
    GetHostAggregate,
    ListHostAggregates,
    RemoveAggregateHost,
    SetHostAggregate,
    SyncHostAggregates,
)
from moorage.messages.wire import Mutation
from moorage.model import HostAggregate, UnmirroredHost
from moorage.plugin.attributes import BadValue, number
from moorage.service.stored_requests import StoredRequests
from placement_store.db.retries import retry_on_stale_read, run_once
from scheduler.registry.aggregates import changes, mirror
from scheduler.registry.aggregates import rows as host_aggregates

LOG = logging.getLogger(__name__)

R = TypeVar("R")


class AggregateEndpoint:
    """Host aggregates.

    :param numeric: keys of metadata whose values plug-ins read as numbers.
    """

    def __init__(self, database: Database, requests: StoredRequests, numeric: Collection[str] = ()) -> None:
        self._database = database
        self._requests = requests
        self._numeric = frozenset(numeric)

    @serves(CreateHostAggregate)
    def create_host_aggregate(self, message: CreateHostAggregate) -> HostAggregate:
        """Create one; see :func:`scheduler.registry.aggregates.changes.create` for its errors.

        :raises InvalidRequest: moreover, a value is none that a plug-in can read.
        """
        self._check_numbers(message.metadata)
        return self._once(message, lambda connection: changes.create(connection, message))

    @serves(SetHostAggregate)
    def set_host_aggregate(self, message: SetHostAggregate) -> Done:
        """Change one; see :func:`scheduler.registry.aggregates.changes.change` for its errors.

        :raises InvalidRequest: moreover, a value is none that a plug-in can read.
        """
        self._check_numbers(message.metadata)
        return self._done(message, lambda connection: changes.change(connection, message))

    @serves(AddAggregateHost)
    def add_aggregate_host(self, message: AddAggregateHost) -> Done:
        """Put a host into one; see :func:`scheduler.registry.aggregates.changes.add_host` for its errors."""
        return self._done(message, lambda connection: changes.add_host(connection, message))

    @serves(RemoveAggregateHost)
    def remove_aggregate_host(self, message: RemoveAggregateHost) -> Done:
        """Take a host out of one; see :func:`scheduler.registry.aggregates.changes.remove_host` for its errors."""
        return self._done(message, lambda connection: changes.remove_host(connection, message))

    @serves(DeleteHostAggregate)
    def delete_host_aggregate(self, message: DeleteHostAggregate) -> HostAggregate:
        """Delete one; see :func:`scheduler.registry.aggregates.changes.delete` for its errors."""
        if message.dry_run:
            return self._tried(lambda connection: changes.delete(connection, message))
        deleted = self._once(message, lambda connection: changes.delete(connection, message))
        LOG.warning("Host aggregate %s is deleted, which had %s host(s)", deleted.name, len(deleted.hosts))
        return deleted

    @serves(GetHostAggregate)
    def get_host_aggregate(self, message: GetHostAggregate) -> HostAggregate:
        """Return one.

        :raises HostAggregateNotFound: there is no such aggregate.
        """
        return self._database.read(lambda connection: host_aggregates.find(connection, message.aggregate).aggregate)

    @serves(ListHostAggregates)
    def list_host_aggregates(self, message: ListHostAggregates) -> list[HostAggregate]:
        """Return all by name, or those that a host is in."""
        return self._database.read(lambda connection: host_aggregates.listed(connection, message))

    @serves(SyncHostAggregates)
    def sync_host_aggregates(self, message: SyncHostAggregates) -> list[UnmirroredHost]:
        """Return the nodes that were missing in an aggregate of their host, and put them into it."""
        if message.dry_run:
            return self._database.read(mirror.missing)

        def work(connection: Connection) -> list[UnmirroredHost]:
            found = mirror.missing(connection)
            mirror.mend(connection, {one.provider_uuid for one in found})
            return found

        return self._once(message, work)

    def _done(self, message: Mutation[Done], work: Callable[[Connection], None]) -> Done:
        def transaction(connection: Connection) -> Done:
            work(connection)
            return Done()

        return self._once(message, transaction)

    def _once(self, message: Mutation[R], work: Callable[[Connection], R]) -> R:
        return run_once(self._requests, message, work)

    def _tried(self, work: Callable[[Connection], R]) -> R:
        """Return what a change would return, or raise what it would raise, and leave all as it is."""
        answers: list[R] = []

        def transaction(connection: Connection) -> None:
            answers.append(work(connection))
            raise _Undone

        with suppress(_Undone):
            retry_on_stale_read(lambda: self._database.write(transaction))
        return answers[-1]

    def _check_numbers(self, metadata: Mapping[str, str | None]) -> None:
        for key in sorted(self._numeric.intersection(metadata)):
            try:
                number(key, metadata[key], 0.0)
            except BadValue as fault:
                raise errors.InvalidRequest(path=f"$.metadata[{key!r}]", reason=str(fault)) from fault


class _Undone(Exception):
    """Rolls a transaction back that was only to be tried."""
