"""The scheduler as a service: its endpoints on the bus, and its periodic tasks."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from oslo_config import cfg
from sqlalchemy import Connection, exc

from moorage import errors, metrics
from moorage.batches import BatchItem
from moorage.bus.bus import Bus, BusServer, serves, serves_many
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import (
    REPORTS_TOPIC,
    DeleteHost,
    Done,
    HostsRegistered,
    ListHosts,
    ReportHosts,
    SelectDestinations,
    SetHost,
)
from moorage.model import HostState
from moorage.service.heartbeat import Heartbeat
from moorage.service.process import ComposedService, Periodic, until_available
from moorage.service.stored_requests import StoredRequests
from placement_store import cells, schema
from placement_store.db import change_feed
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import run_once
from placement_store.service import PlacementRole
from scheduler.decide.claim_writer import ClaimWriter
from scheduler.decide.environment import DecisionEnvironment, InFlight
from scheduler.decide.plugin_failures import FailureCounts
from scheduler.decide.selections import Selections
from scheduler.decide.shared_decisions import Alone, SharedDecisions
from scheduler.endpoints.explain import ExplainEndpoint
from scheduler.endpoints.view import ViewEndpoint
from scheduler.observation import SchedulerObservation
from scheduler.plugins.loading import numeric_metadata
from scheduler.plugins.watch import PluginWatchdog
from scheduler.policy import ActivePolicy, SchedulingPolicy
from scheduler.registry import deletion, hosts, reports
from scheduler.registry.aggregates.endpoint import AggregateEndpoint
from scheduler.registry.aggregates.reader import AggregateReader
from scheduler.registry.sweep import Sweep
from scheduler.view.follower import Follower
from scheduler.view.host_cache import HostCache

LOG = logging.getLogger(__name__)

#: Two concurrent reports may add the same new host; the second one finds its row at its next try.
_REPORT_TRIES = 3
#: Threads for the reports of cells. Arbitrary: a cell reports every few seconds and waits for the answer.
_REPORT_THREADS = 2


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


class SchedulerEndpoint(HostReportEndpoint):
    """Serve the methods of topic ``scheduler``: decisions, hosts, and reports of former releases."""

    def __init__(
        self, environment: DecisionEnvironment, requests: StoredRequests, failure_counts: FailureCounts
    ) -> None:
        super().__init__(requests)
        self._environment = environment
        self._shared = SharedDecisions(environment, ClaimWriter(requests, environment.names))
        self._database = environment.database
        self._failure_counts = failure_counts
        self.decisions = InFlight()

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> Selections:
        """Answer :class:`~moorage.messages.SelectDestinations`; see :func:`.destinations.select` for its errors."""
        return self._counted(lambda: self._shared.select(message))

    @serves_many(SelectDestinations)
    def select_many(self, calls: Sequence[BatchItem[SelectDestinations, Selections]]) -> list[Alone | None]:
        """Answer requests that came in one message; see :meth:`.SharedDecisions.select_many`."""
        began = time.perf_counter()
        with self.decisions.counted(len(calls)):
            alone = self._shared.select_many(calls)
        seconds = time.perf_counter() - began
        for call in calls:
            if call.is_done:
                metrics.DECISION_SECONDS.observe(seconds)
                with suppress(Exception):
                    self._count(call.outcome)
        return [None if decide is None else partial(self._counted, decide) for decide in alone]

    def _counted(self, decide: Alone) -> Selections:
        with self.decisions.counted(), metrics.timed(metrics.DECISION_SECONDS):
            return self._count(decide)

    def _count(self, decide: Alone) -> Selections:
        """Return the outcome of a decision, or raise its error, and count it."""
        result = metrics.FAULT
        try:
            answer = decide()
            result = metrics.OK
        except errors.MoorageError as fault:
            result = fault.code
            if isinstance(fault, errors.NoValidHost):
                self._failure_counts.request_decided()
            raise
        finally:
            metrics.DECISIONS.labels(result).inc()
        self._failure_counts.request_decided()
        return answer

    @serves(ListHosts)
    def list_hosts(self, message: ListHosts) -> list[HostState]:
        """Answer :class:`~moorage.messages.ListHosts`.

        :raises CellNotFound: the cell does not exist.
        """

        def work(connection: Connection) -> list[HostState]:
            if message.cell_uuid is not None:
                cells.by_uuid(connection, message.cell_uuid)
            return hosts.states(connection, message)

        return self._database.read(work)

    @serves(SetHost)
    def set_host(self, message: SetHost) -> HostState:
        """Answer :class:`~moorage.messages.SetHost`; see :func:`scheduler.registry.hosts.set_host` for its errors."""
        return run_once(self._requests, message, lambda connection: hosts.set_host(connection, message))

    @serves(DeleteHost)
    def delete_host(self, message: DeleteHost) -> Done:
        """Answer :class:`~moorage.messages.DeleteHost`; see :func:`scheduler.registry.deletion.plan` for its errors.

        :raises ClaimContention: concurrent transactions kept changing the host or its providers.
        """
        if message.dry_run:
            self._database.read(lambda connection: deletion.plan(connection, message))
            return Done()

        def work(connection: Connection) -> Done:
            deletion.delete(connection, message, self._environment.names)
            return Done()

        return run_once(self._requests, message, work)


class SchedulerService(ComposedService):
    """A scheduler; with ``[scheduler] serve_placement`` it serves the placement role too.

    :param name: its name among the servers of its topics.
    :param reread: reads the configuration again; by default from the files that ``conf`` was read from.
    """

    def __init__(self, conf: cfg.ConfigOpts, name: str, reread: Callable[[], cfg.ConfigOpts] | None = None) -> None:
        super().__init__()
        self._conf = conf
        self._name = name
        self._reread = reread or partial(options.new, files=[Path(file) for file in conf.config_file or ()])
        self._policies: ActivePolicy | None = None

    def reload(self) -> None:
        """Read the configuration again and put its policy in force, unless it is refused."""
        if self._policies:
            self._policies.reload(self._reread)

    def _open(self, opened: ExitStack) -> None:
        """Load the plug-ins, read all hosts, and begin to serve.

        :raises UnknownPlugin: an enabled filter, weigher or request filter does not exist.
        :raises ConfigurationError: one of them cannot be loaded, or not within `[scheduler] plugin_timeout`.
        :raises SchemaMismatch: the main schema is of another revision.
        :raises StoreUnavailable: the database has been away for a minute.
        :raises BusUnavailable: the broker cannot be reached.
        """
        conf = self._conf
        # Check for permanent errors first: an unknown plug-in must be reported without waiting for a database.
        failure_counts = FailureCounts()
        watch = PluginWatchdog(conf.scheduler.plugin_timeout, failure_counts.count)
        policy = SchedulingPolicy.load(conf, failure_counts, watch)
        environment = self._environment(opened, policy)
        database, names, follower = environment.database, environment.names, environment.follower
        requests = StoredRequests(database, schema.requests)

        def take(policy: SchedulingPolicy) -> None:
            environment.policy = policy.decision_policy

        policies = self._policies = ActivePolicy(policy, conf, failure_counts, watch, take)
        endpoint = SchedulerEndpoint(environment, requests, failure_counts)
        endpoints = [
            endpoint,
            policies,
            ExplainEndpoint(environment),
            ViewEndpoint(environment, endpoint.decisions),
            AggregateEndpoint(database, requests, numeric_metadata(conf.scheduler.plugin_timeout)).handlers(),
        ]
        # Reports have their own connection pool: hosts stay up while the placement role and decisions wait for theirs.
        of_reports = Database.configured(conf, pool_size=_REPORT_THREADS)
        opened.callback(of_reports.close)
        reports = HostReportEndpoint(StoredRequests(of_reports, schema.requests))
        bus = Bus(conf)
        opened.callback(bus.close)
        server = bus.server("scheduler", self._name, endpoints, threads=conf.rpc.threads)
        # Check the name before the hosts are read: they are many, and a supervisor repeats a refused start.
        if bus.servers_of("scheduler", self._name):
            server.refuse_second()
        self._read_hosts(environment)
        servers: list[BusServer | PlacementRole] = [
            server,
            bus.server(REPORTS_TOPIC, self._name, [reports], threads=_REPORT_THREADS),
        ]
        kinds = ["scheduler"]
        if conf.scheduler.serve_placement:
            servers.append(PlacementRole(conf, self._name, bus, database, names))
            kinds.append("placement")
        observation = SchedulerObservation(
            conf, servers, follower, environment.host_cache, endpoint.decisions, policies
        )
        opened.callback(observation.close)
        heartbeats = [Heartbeat(conf, bus, kind, self._name) for kind in kinds]
        self._serve(opened, servers, heartbeats, self._periodics(database, follower, bus), watch)
        self._checks, self._samplers = observation.checks(), observation.samplers()

    @staticmethod
    def _serve(
        opened: ExitStack,
        servers: list[BusServer | PlacementRole],
        heartbeats: list[Heartbeat],
        periodics: list[Periodic],
        watch: PluginWatchdog,
    ) -> None:
        """Start the servers and the periodic tasks; the first server is the scheduler's own."""
        # Register the callbacks in the reverse order of the stop. The scheduler's server stops first: `moorage host set
        # --disable` does not wait for a scheduler that has reported its stop. The placement role is the last server to
        # stop: it receives that report, and may be in this process.
        for each in (*periodics, *reversed(servers[1:]), *heartbeats, watch, servers[0]):
            opened.callback(each.stop)
        for each in (*servers, *heartbeats, *periodics):
            each.start()

    def _environment(self, opened: ExitStack, policy: SchedulingPolicy) -> DecisionEnvironment:
        """Open the main database; the view has no hosts yet."""
        conf = self._conf
        database = Database.configured(conf)
        opened.callback(database.close)
        until_available(lambda: schema.MAIN.check(database), "the main database")
        names = ResourceClassNames(database)
        host_cache = HostCache()
        follower = Follower(database, names, host_cache)
        return DecisionEnvironment(
            database,
            names,
            host_cache,
            follower,
            policy.decision_policy,
            AggregateReader(database, follower.now).read,
            max_age=conf.scheduler.view_max_age,
            max_tries=conf.scheduler.max_claim_tries,
        )

    def _read_hosts(self, environment: DecisionEnvironment) -> None:
        """Read all hosts: the view must be complete before the first decision."""
        follower = environment.follower
        LOG.info("Reading all hosts")
        until_available(lambda: follower.compare(follower.now()), "the main database")
        LOG.info("Knows %s hosts", len(environment.host_cache.snapshot()))

    def _periodics(self, database: Database, follower: Follower, bus: Bus) -> list[Periodic]:
        settings = self._conf.scheduler
        sweep = Sweep(database, settings.host_down_after, bus.probe)
        return [
            Periodic("sweep of silent hosts", sweep.run, sweep.interval),
            Periodic(
                "comparison of the host view",
                lambda: follower.compare(follower.now()),
                settings.view_compare_interval,
            ),
            Periodic(
                "pruning of the feed",
                lambda: change_feed.prune_all(database, settings.feed_retention),
                self._conf.service.prune_interval,
            ),
        ]
