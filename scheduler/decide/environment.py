"""Hold what all decisions of one scheduler share: the store, the host view, and the policy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from moorage.db.database import Database
from moorage.model import RequestSpec
from moorage.plugin import Filter, RequestFilter
from placement_store import candidates, cells
from placement_store.db.names import ResourceClassNames, TraitNames
from scheduler.decide.evaluation import EvaluationPool
from scheduler.decide.funnel import Funnel
from scheduler.decide.planner import Planner
from scheduler.decide.plugin_failures import PluginFailures
from scheduler.decide.request_filters import ReadAggregates, RequestFilterChain
from scheduler.plugins.loading import Named, Weighted
from scheduler.view.follower import Follower
from scheduler.view.host_cache import HostCache


@dataclass(frozen=True, slots=True)
class DecisionPolicy:
    """Hold the plug-ins that decide requests, and the handling of those that break.

    :param subset_size: the number of best hosts among which one is picked at random, by the request's seed.
    """

    filters: Sequence[Named[Filter]]
    weighers: Sequence[Weighted]
    request_filters: Sequence[Named[RequestFilter]] = ()
    subset_size: int = 1
    plugin_failures: PluginFailures = field(default_factory=PluginFailures)
    #: The evaluations of earlier requests by these plug-ins.
    evaluations: EvaluationPool = field(default_factory=EvaluationPool)

    def for_request(
        self, aggregates: ReadAggregates, check: Callable[[RequestSpec], None]
    ) -> tuple[Planner, RequestFilterChain]:
        """Return the planner and the request filters of one request.

        Both share the plug-in failures of the request: broken plug-ins are skipped, if at all, in one request.
        """
        failures = self.plugin_failures.for_request()
        planner = Planner(Funnel(self.filters, self.weighers, failures), self.subset_size, self.evaluations)
        return planner, RequestFilterChain(self.request_filters, aggregates, failures, check)


@dataclass(slots=True)
class DecisionEnvironment:
    """Hold what all decisions of one scheduler share.

    :param policy: the policy of the decisions that begin from now on; it may be replaced at any time.
    :param aggregates: reads the host aggregates; only request filters need them.
    :param max_age: seconds; if the view is older, a decision first makes it follow the store.
    :param max_tries: the number of refused plans after which a request fails with contention.
    """

    database: Database
    names: ResourceClassNames
    host_cache: HostCache
    follower: Follower
    policy: DecisionPolicy
    aggregates: ReadAggregates
    max_age: float
    max_tries: int

    def check_groups(self, request: RequestSpec) -> None:
        """Refuse resource groups that contradict each other, and names that do not exist.

        :raises InvalidRequest: the groups contradict each other.
        :raises NotFound: a resource class or a trait does not exist.
        """
        wanted = request.resource_request
        candidates.check(wanted, path="$.request_spec")
        for name in wanted.totals():
            self.names.id_of(name)
        traits = {*wanted.root_required, *wanted.root_forbidden}
        for group in wanted.groups.values():
            traits.update(group.required, group.forbidden, *group.any_of)
        if traits:
            self.database.read(lambda connection: TraitNames.require(connection, traits))

    def check_cell(self, request: RequestSpec) -> None:
        """Refuse a cell that does not exist: a filter could not distinguish it from a cell without room.

        :raises CellNotFound: the requested cell does not exist.
        """
        wanted = request.requested_destination
        if wanted and wanted.cell and not self.host_cache.snapshot().in_cell(wanted.cell).any():
            cell = wanted.cell
            # A cell without hosts may be new, or deleted.
            self.database.read(lambda connection: cells.by_uuid(connection, cell))
