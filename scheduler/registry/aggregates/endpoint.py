"""The endpoint of host aggregates on topic `scheduler`."""

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
    """Serve the methods of host aggregates.

    :param numeric: metadata keys whose values plug-ins read as numbers.
    """

    def __init__(self, database: Database, requests: StoredRequests, numeric: Collection[str] = ()) -> None:
        self._database = database
        self._requests = requests
        self._numeric = frozenset(numeric)

    @serves(CreateHostAggregate)
    def create_host_aggregate(self, message: CreateHostAggregate) -> HostAggregate:
        """Create a host aggregate; see :func:`scheduler.registry.aggregates.changes.create` for its errors.

        :raises InvalidRequest: also if a plug-in cannot read a value as a number.
        """
        self._check_numbers(message.metadata)
        return self._once(message, lambda connection: changes.create(connection, message))

    @serves(SetHostAggregate)
    def set_host_aggregate(self, message: SetHostAggregate) -> Done:
        """Change a host aggregate; see :func:`scheduler.registry.aggregates.changes.change` for its errors.

        :raises InvalidRequest: also if a plug-in cannot read a value as a number.
        """
        self._check_numbers(message.metadata)
        return self._done(message, lambda connection: changes.change(connection, message))

    @serves(AddAggregateHost)
    def add_aggregate_host(self, message: AddAggregateHost) -> Done:
        """Add a host to a host aggregate; see :func:`.changes.add_host` for its errors."""
        return self._done(message, lambda connection: changes.add_host(connection, message))

    @serves(RemoveAggregateHost)
    def remove_aggregate_host(self, message: RemoveAggregateHost) -> Done:
        """Remove a host from a host aggregate; see :func:`.changes.remove_host` for its errors."""
        return self._done(message, lambda connection: changes.remove_host(connection, message))

    @serves(DeleteHostAggregate)
    def delete_host_aggregate(self, message: DeleteHostAggregate) -> HostAggregate:
        """Delete a host aggregate; see :func:`.changes.delete` for its errors."""
        if message.dry_run:
            return self._dry_run(lambda connection: changes.delete(connection, message))
        deleted = self._once(message, lambda connection: changes.delete(connection, message))
        LOG.warning("Host aggregate %s is deleted, which had %s host(s)", deleted.name, len(deleted.hosts))
        return deleted

    @serves(GetHostAggregate)
    def get_host_aggregate(self, message: GetHostAggregate) -> HostAggregate:
        """Return a host aggregate.

        :raises HostAggregateNotFound: the aggregate does not exist.
        """
        return self._database.read(lambda connection: host_aggregates.find(connection, message.aggregate).aggregate)

    @serves(ListHostAggregates)
    def list_host_aggregates(self, message: ListHostAggregates) -> list[HostAggregate]:
        """Return the host aggregates that a message selects."""
        return self._database.read(lambda connection: host_aggregates.listed(connection, message))

    @serves(SyncHostAggregates)
    def sync_host_aggregates(self, message: SyncHostAggregates) -> list[UnmirroredHost]:
        """Return the nodes that are missing in an aggregate of their host, after adding them unless it is a dry run."""
        if message.dry_run:
            return self._database.read(mirror.missing_nodes)

        def work(connection: Connection) -> list[UnmirroredHost]:
            found = mirror.missing_nodes(connection)
            mirror.add_missing(connection, {one.provider_uuid for one in found})
            return found

        return self._once(message, work)

    def _done(self, message: Mutation[Done], work: Callable[[Connection], None]) -> Done:
        def transaction(connection: Connection) -> Done:
            work(connection)
            return Done()

        return self._once(message, transaction)

    def _once(self, message: Mutation[R], work: Callable[[Connection], R]) -> R:
        return run_once(self._requests, message, work)

    def _dry_run(self, work: Callable[[Connection], R]) -> R:
        """Run a change in a transaction that is rolled back; return its result or raise its error."""
        answers: list[R] = []

        def transaction(connection: Connection) -> None:
            answers.append(work(connection))
            raise _RollBack

        with suppress(_RollBack):
            retry_on_stale_read(lambda: self._database.write(transaction))
        return answers[-1]

    def _check_numbers(self, metadata: Mapping[str, str | None]) -> None:
        for key in sorted(self._numeric.intersection(metadata)):
            try:
                number(key, metadata[key], 0.0)
            except BadValue as fault:
                raise errors.InvalidRequest(path=f"$.metadata[{key!r}]", reason=str(fault)) from fault


class _RollBack(Exception):
    """Rolls back the transaction of a dry run."""
