"""The endpoint of host aggregates on topic `scheduler`."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection

from moorage import errors
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
from moorage.messages.wire import Message
from moorage.model import HostAggregate, UnmirroredHost
from moorage.plugin.attributes import BadValue, number
from moorage.service.stored_requests import StoredRequests
from placement_store.db.retries import retry_on_stale_read, run_once
from scheduler.registry.aggregates import changes, mirror
from scheduler.registry.aggregates import rows as host_aggregates

LOG = logging.getLogger(__name__)

Handler = Callable[[Any], Any]


class AggregateEndpoint:
    """Serve the methods of host aggregates.

    :param numeric: metadata keys whose values plug-ins read as numbers.
    """

    def __init__(self, database: Database, requests: StoredRequests, numeric: Collection[str] = ()) -> None:
        self._database = database
        self._requests = requests
        self._numeric = frozenset(numeric)

    def handlers(self) -> Mapping[type[Message[Any]], Handler]:
        """Return the handler of each message; see the functions for their errors."""
        return {
            CreateHostAggregate: self._writing(changes.create),
            SetHostAggregate: self._writing(changes.change),
            AddAggregateHost: self._writing(changes.add_host),
            RemoveAggregateHost: self._writing(changes.remove_host),
            DeleteHostAggregate: self._delete,
            GetHostAggregate: self._reading(host_aggregates.get),
            ListHostAggregates: self._reading(host_aggregates.listed),
            SyncHostAggregates: self._sync,
        }

    def _reading(self, work: Callable[[Connection, Any], Any]) -> Handler:
        return lambda message: self._database.read(lambda connection: work(connection, message))

    def _writing(self, work: Callable[[Connection, Any], Any]) -> Handler:
        """Return a handler that makes a change in the transaction that stores the answer; by default this is `Done`."""

        def handler(message: Any) -> Any:
            self._check_numbers(getattr(message, "metadata", {}))
            return run_once(self._requests, message, lambda connection: work(connection, message) or Done())

        return handler

    def _check_numbers(self, metadata: Mapping[str, str | None]) -> None:
        """Refuse values that a plug-in cannot read as a number.

        :raises InvalidRequest: a value is not a number.
        """
        for key in sorted(self._numeric.intersection(metadata)):
            try:
                number(key, metadata[key], 0.0)
            except BadValue as fault:
                raise errors.InvalidRequest(path=f"$.metadata[{key!r}]", reason=str(fault)) from fault

    def _delete(self, message: DeleteHostAggregate) -> HostAggregate:
        if not message.dry_run:
            deleted = run_once(self._requests, message, lambda connection: changes.delete(connection, message))
            LOG.warning("Host aggregate %s is deleted; it had %s host(s)", deleted.name, len(deleted.hosts))
            return deleted
        # A dry run must be refused for the same reasons, so it makes the change and rolls it back.
        answers: list[HostAggregate] = []

        def transaction(connection: Connection) -> None:
            answers.append(changes.delete(connection, message))
            raise _RollBack

        with suppress(_RollBack):
            retry_on_stale_read(lambda: self._database.write(transaction))
        return answers[-1]

    def _sync(self, message: SyncHostAggregates) -> list[UnmirroredHost]:
        if message.dry_run:
            return self._database.read(mirror.missing_nodes)
        return run_once(self._requests, message, mirror.sync)


class _RollBack(Exception):
    """Rolls back the transaction of a dry run."""
