"""The sources of the page: each answer of the cloud is requested once, and shared by all viewers."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from oslo_config import cfg

from dashboard import explanations, host_detail, recent_requests
from dashboard.audits import Audits
from dashboard.host_map import HostMap
from dashboard.recent_requests import RecentRequests
from dashboard.shared_answer import SharedAnswer
from moorage import errors
from moorage.bus.bus import Bus
from moorage.cli import lists
from moorage.db.database import Database
from moorage.messages import ListCells, ListOperations
from moorage.model import Flavor
from moorage.model.inspection import OperationSummary
from placement_store import schema
from placement_store.db.names import ResourceClassNames
from placement_store.in_process import InProcessPlacement
from scheduler.registry.aggregates.reader import AggregateReader
from scheduler.view.follower import Follower
from scheduler.view.host_cache import HostCache
from scheduler.view.snapshot import Snapshot

#: Seconds for which the names of cells and host aggregates are kept.
_NAMES_SECONDS = 10.0
#: The maximum number of operations in an answer, the oldest first.
_MOST_OPERATIONS = 500


class Sources:
    """The host view of this process, and clients of conductors and schedulers. Safe to use from several threads.

    Hosts and providers are read from the main database, as the schedulers read them, so that no scheduler works for the
    page. The records of instances and operations are requested over the bus. Nothing is read while no viewer asks.

    :raises ConfigurationError: the configuration has no database or no bus.
    :raises SchemaMismatch: the main schema has another revision.
    :raises StoreUnavailable: the database cannot be reached.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        options = conf.dashboard
        interval: float = options.refresh_interval
        self.interval = interval
        self._compare_interval: float = conf.scheduler.view_compare_interval
        #: As many questions of single viewers may wait for an answer: two threads remain for the hosts.
        self._questions = threading.BoundedSemaphore(max(1, options.threads - 2))
        self._bus = Bus(conf)
        self._conductor = self._bus.client("conductor", timeout=options.call_timeout)
        self._scheduler = self._bus.client("scheduler", timeout=options.call_timeout)
        self._database = Database.configured(conf, pool_size=options.threads)
        try:
            schema.MAIN.check(self._database)
            self._placement = InProcessPlacement(conf, conf.database.connection)
        except BaseException:
            self._database.close()
            self._bus.close()
            raise
        self._host_cache = HostCache()
        self._follower = Follower(self._database, ResourceClassNames(self._database), self._host_cache)
        self._aggregates = AggregateReader(self._database)
        self._map = HostMap()
        self._cells = SharedAnswer(self._read_cells, _NAMES_SECONDS)
        self._last_cells: Mapping[str, str] = {}
        recent = RecentRequests(self._conductor, options.recent_requests)
        self._requests = SharedAnswer(recent.read, interval)
        self._operations = SharedAnswer(self._read_operations, interval)
        self.audits = Audits.of_cloud(conf)

    def follow(self) -> Snapshot:
        """Return all hosts, read at most one interval ago; they are fully compared as often as by a scheduler.

        :raises StoreUnavailable: the database cannot be reached.
        """
        now = self._follower.now()
        self._follower.compare(now - self._compare_interval)
        self._follower.follow(now - self.interval)
        return self._host_cache.snapshot()

    def hosts(self, since: str | None) -> dict[str, Any]:
        """Return the hosts that have changed since a version, or all, with the names of cells and aggregates.

        :raises StoreUnavailable: the database cannot be reached.
        """
        aggregates = self._aggregates.read(self._follower.now() - _NAMES_SECONDS)
        return {
            "hosts": self._map.encoded(self.follow(), since),
            "cell_names": self._cell_names(),
            "aggregate_names": {one.uuid: one.name for one in aggregates},
            "interval": self.interval,
        }

    def host(self, service_host: str, nodename: str | None, cell_uuid: str | None) -> dict[str, Any]:
        """Return one host with its providers and their consumers.

        :raises HostNotFound: no host has this name.
        :raises StoreUnavailable: the database cannot be reached.
        """
        found = host_detail.find(self.follow(), service_host, nodename, cell_uuid)
        return host_detail.read(self._placement, found)

    def requests(self) -> list[dict[str, Any]]:
        """Return the newest instances.

        :raises MoorageError: the super conductor does not answer.
        """
        return self._requests.get()

    def operations(self) -> dict[str, Any]:
        """Return the operations under way, the oldest first.

        :raises MoorageError: the super conductor does not answer.
        """
        found = self._operations.get()
        shown = [
            {**msgspec.to_builtins(one), "cell": None if one.cell_uuid is None else self.cell_name(one.cell_uuid)}
            for one in found[:_MOST_OPERATIONS]
        ]
        return {"operations": shown, "count": len(found)}

    def instance(self, uuid: str) -> dict[str, Any]:
        """Return the history of an instance; see :func:`dashboard.recent_requests.life` for its errors.

        :raises Overloaded: too many viewers wait for answers.
        """
        with self._question():
            return recent_requests.life(self._conductor, self._placement, self._host_cache.snapshot(), uuid)

    def explain_instance(self, uuid: str, hosts: tuple[str, ...], *, now: bool) -> dict[str, Any]:
        """Explain the request of an instance; see :func:`dashboard.explanations.of_instance` for its errors.

        :raises Overloaded: too many viewers wait for answers.
        """
        with self._question():
            return explanations.of_instance(self._conductor, self._scheduler, uuid, hosts, now=now)

    def explain_size(self, flavor: Flavor, hosts: tuple[str, ...]) -> dict[str, Any]:
        """Explain a new request of a size; see :func:`dashboard.explanations.of_size` for its errors.

        :raises Overloaded: too many viewers wait for answers.
        """
        with self._question():
            return explanations.of_size(self._scheduler, flavor, hosts)

    def cell_name(self, uuid: str) -> str:
        """Return the name of a cell, or its uuid if it has no name or the main database, which has it, is away."""
        try:
            return self._cell_names().get(uuid, uuid)
        except errors.Unavailable:
            return uuid

    def close(self) -> None:
        """Close all connections."""
        self._bus.close()
        self._placement.close()
        self._database.close()

    @contextmanager
    def _question(self) -> Iterator[None]:
        """Ask a conductor or a scheduler for one viewer; while it is silent, this holds a thread of the page.

        :raises Overloaded: too many viewers wait for answers.
        """
        if not self._questions.acquire(blocking=False):
            raise errors.Overloaded(
                reason="other viewers of the dashboard wait for a conductor or a scheduler: ask again"
            )
        try:
            yield
        finally:
            self._questions.release()

    def _cell_names(self) -> Mapping[str, str]:
        """Return the names of all cells; the last known names while the main database is away.

        :raises StoreUnavailable: the names have not been read yet, and the main database cannot be reached.
        """
        try:
            self._last_cells = self._cells.get()
        except errors.Unavailable:
            if not self._last_cells:
                raise
        return self._last_cells

    def _read_cells(self) -> Mapping[str, str]:
        return {cell.uuid: cell.name for cell in self._placement.call(ListCells(without_databases=True))}

    def _read_operations(self) -> list[OperationSummary]:
        return lists.operations(self._conductor, ListOperations())
