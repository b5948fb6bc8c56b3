"""Deciding: what a request asks for, planned on the hosts as they are; whether it is then claimed or only explained.

What cannot be placed is said only after the view has caught up with the store and all has been planned once more.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

from moorage.db.database import Database
from moorage.messages import SelectDestinations
from moorage.model import Explanation, RequestSpec, ResourceRequest, WhatIf
from placement_store import candidates, cells
from placement_store.db.names import ResourceClassNames, TraitNames
from scheduler.decide import request_context
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.planner import DestinationPlan, NoHost, Planner
from scheduler.decide.request_context import RequestContext
from scheduler.decide.request_filters import Refusal, RequestFilterChain, RequestResolver
from scheduler.view.follower import Follower
from scheduler.view.host_cache import HostCache
from scheduler.view.snapshot import Snapshot

T = TypeVar("T")


class Decided(NamedTuple):
    """What came of planning, and what was known beside the hosts."""

    known: RequestContext
    plan: DestinationPlan | NoHost


class Rules(NamedTuple):
    """By what a request is decided; a decision goes by the same ones from its beginning to its end."""

    planner: Planner
    narrowing: RequestFilterChain

    def for_request(self) -> "Rules":
        """Return the same for one request: a plug-in that it breaks is left out of it alone, where that is wanted."""
        plugin_failures = self.planner.plugin_failures
        if not plugin_failures.skip:
            return self
        plugin_failures = plugin_failures.for_request()
        return Rules(self.planner.going_by(plugin_failures), self.narrowing.going_by(plugin_failures))


class Deciding:
    """What decisions of one scheduler are made with.

    :param rules: by what the decisions go that begin from now on; put others in their place at any time.
    :param max_age: seconds; a decision first follows the store where the view is older.
    """

    def __init__(
        self,
        database: Database,
        names: ResourceClassNames,
        host_cache: HostCache,
        follower: Follower,
        rules: Rules,
        max_age: float,
    ) -> None:
        self.database = database
        self.names = names
        self.host_cache = host_cache
        self.follower = follower
        self.rules = rules
        self.max_age = max_age

    def begin(self, message: SelectDestinations, read: Callable[[], RequestContext] | None = None) -> "Decision":
        """Begin to decide on a request: with a view that is new enough.

        :param read: reads what must be known beside the hosts, where that is not what the request itself says.
        :raises InvalidRequest: a hint or extra spec is not what a filter understands.
        :raises CellNotFound: the requested cell does not exist.
        :raises StoreUnavailable: the view cannot follow the store.
        """
        asked_at = self.follower.now()
        rules = self.rules.for_request()
        rules.planner.check(message.request_spec)
        self.follower.follow(asked_at - self.max_age)
        self._check_cell(message.request_spec)
        return Decision(self, rules, message, asked_at, read or (lambda: self._circumstances(message)))

    def apart(self, work: Callable[[], T]) -> T:
        """Return the result of some work of a decision; raises as :meth:`.plugin_failures.Faults.apart` does."""
        return self.rules.planner.plugin_failures.apart(work)

    def check_groups(self, request: RequestSpec) -> None:
        """Refuse resource groups that contradict each other, and names that do not exist."""
        asked = request.resource_request
        candidates.check(asked, path="$.request_spec")
        for name in {name for group in asked.groups.values() for name in group.resources}:
            self.names.id_of(name)
        if named := _traits_named(asked):
            self.database.read(lambda connection: TraitNames.require(connection, named))

    def _check_cell(self, request: RequestSpec) -> None:
        """Tell a cell that does not exist from one that has no room."""
        wanted = request.requested_destination
        if wanted and wanted.cell and wanted.cell not in self.host_cache.snapshot().cells:
            cell = wanted.cell
            self.database.read(lambda connection: cells.by_uuid(connection, cell))

    def _circumstances(self, message: SelectDestinations) -> RequestContext:
        """Read anew what a request depends on beside the hosts, if anything."""
        if not request_context.is_needed(message):
            return request_context.NO_CONTEXT
        return self.database.read(lambda connection: request_context.read(connection, message, self.names))


class Decision:
    """One request while it is decided on."""

    def __init__(
        self,
        made_with: Deciding,
        rules: Rules,
        message: SelectDestinations,
        asked_at: float,
        read: Callable[[], RequestContext],
    ) -> None:
        self._made_with = made_with
        self._rules = rules
        self._message = message
        self._asked_at = asked_at
        self._read = read
        self._asking = RequestResolver(rules.narrowing, message, made_with.check_groups)

    def plan(self, refused_claims: RefusedClaims, named: Collection[str] = ()) -> Decided:
        """Plan on what is known, and, should that fall short, once more on what the store has now.

        :param named: hosts that an explanation shall tell of by name.
        :raises MoorageError: see :meth:`scheduler.decide.destinations.Destinations.select`.
        """
        known = self._read()
        plan = self._plan_on_view(self._asked_at - self._made_with.max_age, refused_claims, known, named)
        if isinstance(plan, NoHost):
            self._made_with.follower.catch_up(self._asked_at)
            # Hosts that have refused this request may have room again: left out, they would make it untrue.
            refused_claims.try_all_again()
            known = self._read()
            plan = self._plan_on_view(self._asked_at, refused_claims, known, named)
        return Decided(known, plan)

    def why_not(self, no_host: NoHost, refused_claims: RefusedClaims, named: Collection[str] = ()) -> Explanation:
        """Return why there is nowhere to put it."""
        return self._rules.planner.why_not(no_host, self._message, refused_claims, named)

    def how_many(self, view: Snapshot, known: RequestContext, seconds: float) -> WhatIf:
        """Return how many more like this one would fit on the hosts that were decided on.

        :param seconds: how long a search for that may take.
        """
        asked = self._asking.on(view, self._asked_at - self._made_with.max_age)
        if isinstance(asked, Refusal):
            return WhatIf(more=0)
        return self._rules.planner.how_many(view, asked, known, seconds)

    def _plan_on_view(
        self, begun_after: float, refused_claims: RefusedClaims, known: RequestContext, named: Collection[str]
    ) -> DestinationPlan | NoHost:
        """Plan what the request means on the hosts as they are now."""
        view = self._made_with.host_cache.snapshot()
        asked = self._asking.on(view, begun_after)
        if isinstance(asked, Refusal):
            return NoHost.before_all(view, self._message.request_spec, *asked)
        return self._rules.planner.plan(view, asked, refused_claims, known, named)


def _traits_named(asked: ResourceRequest) -> set[str]:
    named = {*asked.root_required, *asked.root_forbidden}
    for group in asked.groups.values():
        named.update(group.required, group.forbidden, *group.any_of)
    return named
