"""The host aggregates of a simulated cloud, one of them a zone: operators move hosts into them and out of them."""

from collections import Counter

from harness.cloud import RunningCloud
from harness.simulation.clients.requests import Methods, Requests
from harness.simulation.machine.kernel import KERNEL
from harness.simulation.story import Action
from moorage import errors, ids
from moorage.messages import AddAggregateHost, CreateHostAggregate, RemoveAggregateHost, SyncHostAggregates
from moorage.model import ZONE_KEY, UnmirroredHost

ZONE = "zone"
#: The name of each aggregate, and its metadata. Only hosts without servers can change their zone.
_AGGREGATES = {ZONE: {ZONE_KEY: ZONE}, "racks": {"rack": "one"}, "more racks": {"rack": "two"}}
#: Virtual seconds after which every decision knows of a change: the default of `[scheduler] view_max_age`.
VIEW_AGE = 0.1


def create_aggregates(cloud: RunningCloud) -> None:
    """Create the aggregates, without hosts."""
    for name, metadata in _AGGREGATES.items():
        message = CreateHostAggregate(request_id=ids.fresh(), name=name, metadata=metadata)
        cloud.client("scheduler", timeout=20.0).call(message)


class Zones:
    """The orders about aggregates, and which hosts the zone may have."""

    def __init__(self, callers: Requests) -> None:
        self._callers = callers
        #: The last time at which each host may have been in the zone; hosts that never may are missing.
        self._members: dict[str, float] = {}
        #: The numbers of orders to add a host to the zone, and of those that are not answered.
        self._added: Counter[str] = Counter()
        self._adding: Counter[str] = Counter()
        self.methods: Methods = {"add to aggregate": self._add, "remove from aggregate": self._remove}

    def may_have(self, host: str, since: float) -> bool:
        """Return whether a host may have been in the zone at a time, or later, by what was answered."""
        return self._members.get(host, -1.0) >= since - VIEW_AGE

    def missing_providers(self) -> list[UnmirroredHost]:
        """Return the hosts in aggregates whose providers are not in them."""
        return self._callers.call("scheduler", SyncHostAggregates(request_id=ids.fresh(), dry_run=True))

    def _add(self, action: Action) -> None:
        name, host = self._chosen(action)
        message = AddAggregateHost(request_id=self._callers.request_id(action), aggregate=name, service_host=host)

        def add() -> None:
            if name != ZONE:
                self._callers.send("scheduler", message)
                return
            self._added[host] += 1
            self._adding[host] += 1
            self._members[host] = float("inf")
            try:
                self._callers.send("scheduler", message)
            except errors.Unavailable:
                raise
            except errors.MoorageError:
                self._adding[host] -= 1
                raise
            self._adding[host] -= 1

        self._callers.again(add)

    def _remove(self, action: Action) -> None:
        name, host = self._chosen(action)
        message = RemoveAggregateHost(request_id=self._callers.request_id(action), aggregate=name, service_host=host)

        def remove() -> None:
            is_first, before = self._callers.is_first(message), self._added[host]
            is_settled = not self._adding[host]
            self._callers.send("scheduler", message)
            if name == ZONE and is_first and is_settled and self._added[host] == before:
                self._members[host] = KERNEL.now

        self._callers.again(remove)

    def _chosen(self, action: Action) -> tuple[str, str]:
        return [*_AGGREGATES][action.choice // 32 % len(_AGGREGATES)], self._callers.host_of(action)
