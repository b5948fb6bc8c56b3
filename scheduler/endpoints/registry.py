"""The endpoints of the registry: hosts, the reports of cells about them, and host aggregates."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, exc

from moorage import errors
from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import (
    AddAggregateHost,
    CreateHostAggregate,
    DeleteHost,
    DeleteHostAggregate,
    Done,
    GetHostAggregate,
    HostsRegistered,
    ListHostAggregates,
    ListHosts,
    RemoveAggregateHost,
    ReportHosts,
    SetHost,
    SetHostAggregate,
    SyncHostAggregates,
)
from moorage.messages.wire import Message
from moorage.model import HostAggregate, UnmirroredHost
from moorage.plugin.attributes import BadValue, number
from moorage.service.stored_requests import StoredRequests
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import retry_on_stale_read, run_once
from scheduler.registry import deletion, hosts, reports
from scheduler.registry.aggregates import changes, mirror
from scheduler.registry.aggregates import rows as host_aggregates

LOG = logging.getLogger(__name__)

#: Two concurrent reports may add the same new host; the second one finds its row at its next try.
_REPORT_TRIES = 3

Handler = Callable[[Any], Any]


class RegistryEndpoint:
    """Serve the methods of hosts and host aggregates.

    :param numeric: metadata keys whose values plug-ins read as numbers.
    """

    def __init__(
        self, database: Database, requests: StoredRequests, names: ResourceClassNames, numeric: Collection[str] = ()
    ) -> None:
        self._database = database
        self._requests = requests
        self._names = names
        self._numeric = frozenset(numeric)

    def handlers(self) -> Mapping[type[Message[Any]], Handler]:
        """Return the handler of each message; see the functions for their errors."""
        return {
            ListHosts: self._reading(hosts.listed),
            SetHost: self._writing(hosts.set_host),
            DeleteHost: self._delete_host,
            CreateHostAggregate: self._writing(changes.create),
            SetHostAggregate: self._writing(changes.change),
            AddAggregateHost: self._writing(changes.add_host),
            RemoveAggregateHost: self._writing(changes.remove_host),
            DeleteHostAggregate: self._delete_aggregate,
            GetHostAggregate: self._reading(host_aggregates.get),
            ListHostAggregates: self._reading(host_aggregates.listed),
            SyncHostAggregates: self._sync,
        }

    def _reading(self, work: Callable[[Connection, Any], Any]) -> Handler:
        return lambda message: self._database.read(lambda connection: work(connection, message))

    def _writing(self, work: Callable[[Connection, Any], Any]) -> Handler:
        """Return a handler that makes a change in the transaction that stores the answer; by default this is `Done`.

        It raises ``ClaimContention`` if the change meets other changes at each try.
        """

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

    def _delete_host(self, message: DeleteHost) -> Done:
        if message.dry_run:
            self._database.read(lambda connection: deletion.plan(connection, message))
            return Done()
        delete = self._writing(lambda connection, message: deletion.delete(connection, message, self._names))
        done: Done = delete(message)
        return done

    def _delete_aggregate(self, message: DeleteHostAggregate) -> HostAggregate:
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


class HostReportEndpoint:
    """Serve the reports of cells, on their own topic; cells of former releases report on topic ``scheduler``."""

    def __init__(self, requests: StoredRequests) -> None:
        self._requests = requests

    @serves(ReportHosts)
    def report_hosts(self, message: ReportHosts) -> HostsRegistered:
        """Answer :class:`~moorage.messages.ReportHosts`.

        :raises CellNotFound: the cell does not exist.
        """
        for _ in range(_REPORT_TRIES - 1):
            try:
                return self._report(message)
            except exc.IntegrityError:
                LOG.info("Another report has registered a host of cell %s first", message.cell_uuid)
        return self._report(message)

    def _report(self, message: ReportHosts) -> HostsRegistered:
        return run_once(self._requests, message, lambda connection: reports.write(connection, message))
