"""The scheduler as a service: what it serves on the bus, and its periodic tasks."""

import logging
from contextlib import ExitStack
from pathlib import Path

from oslo_config import cfg

from moorage.bus.bus import Bus, BusServer
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import REPORTS_TOPIC
from moorage.service.heartbeat import Heartbeat
from moorage.service.process import ComposedService, Periodic, until_available
from moorage.service.stored_requests import StoredRequests
from placement_store import schema
from placement_store.db import change_feed
from placement_store.db.names import ResourceClassNames
from placement_store.service import PlacementRole
from scheduler.decide.environment import DecisionEnvironment
from scheduler.decide.plugin_failures import FailureCounts
from scheduler.endpoints.decisions import DecisionEndpoint
from scheduler.endpoints.explain import ExplainEndpoint
from scheduler.endpoints.registry import HostReportEndpoint, RegistryEndpoint
from scheduler.endpoints.view import ViewEndpoint
from scheduler.observation import SchedulerObservation
from scheduler.plugins.loading import numeric_metadata
from scheduler.plugins.watch import PluginWatchdog
from scheduler.policy import ActivePolicy, SchedulingPolicy
from scheduler.registry.aggregates.reader import AggregateReader
from scheduler.registry.sweep import Sweep
from scheduler.view.follower import Follower
from scheduler.view.host_cache import HostCache

LOG = logging.getLogger(__name__)

#: Threads for the reports of cells. Arbitrary: a cell reports every few seconds and waits for the answer.
_REPORT_THREADS = 2


class SchedulerService(ComposedService):
    """A scheduler; with ``[scheduler] serve_placement`` it serves the placement role too.

    :param name: its name among the servers of its topics.
    """

    def __init__(self, conf: cfg.ConfigOpts, name: str) -> None:
        super().__init__()
        self._conf = conf
        self._name = name
        self._policies: ActivePolicy | None = None

    def reload(self) -> None:
        """Read the configuration again and put its policy in force, unless it is refused."""
        if self._policies:
            files = [Path(file) for file in self._conf.config_file or ()]
            self._policies.reload(lambda: options.new(files=files))

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

        def put_in_force(policy: SchedulingPolicy) -> None:
            environment.policy = policy.decision_policy

        policies = self._policies = ActivePolicy(policy, conf, failure_counts, watch, put_in_force)
        decisions = DecisionEndpoint(environment, requests, failure_counts)
        endpoints = [
            decisions,
            # Cells of former releases report on this topic.
            HostReportEndpoint(requests),
            policies,
            ExplainEndpoint(environment),
            ViewEndpoint(environment, decisions.in_flight),
            RegistryEndpoint(database, requests, names, numeric_metadata(conf.scheduler.plugin_timeout)).handlers(),
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
        observation = SchedulerObservation(conf, servers, environment, decisions.in_flight, policies)
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
            AggregateReader(database).read,
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
                "comparison of the host view", lambda: follower.compare(follower.now()), settings.view_compare_interval
            ),
            Periodic(
                "pruning of the feed",
                lambda: change_feed.prune_all(database, settings.feed_retention),
                self._conf.service.prune_interval,
            ),
        ]
