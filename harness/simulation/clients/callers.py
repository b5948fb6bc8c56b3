"""The callers of a simulated cloud: they send the requests of the story, and note the answers."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import os_traits

from harness.cloud import RunningCloud
from harness.simulation.clients.answers import GroupOrder, Order, faults_of, noted
from harness.simulation.clients.operators import Operators
from harness.simulation.clients.requests import Methods, Requests
from harness.simulation.clients.seats import Seats
from harness.simulation.clients.writers import LICENCE, LICENCES, Writers
from harness.simulation.clients.zones import ZONE, Zones
from harness.simulation.cloud import MEMBERS, POOL, WHOLE
from harness.simulation.machine.kernel import KERNEL
from harness.simulation.story import Action, Story
from moorage import errors, ids
from moorage.messages import (
    AbortMigration,
    AttachResource,
    BuildInstances,
    ConfirmMigration,
    DeleteAllocations,
    DeleteInstance,
    DetachResource,
    EnsureResourceClass,
    EvacuateInstance,
    LiveMigrateInstance,
    MigrateInstance,
    RebuildInstance,
    ReportProviders,
    ResizeInstance,
    RevertMigration,
    SelectDestinations,
    SetHost,
    ShelveInstance,
    UnshelveInstance,
)
from moorage.messages.wire import Mutation
from moorage.model import Flavor, Image, Inventory, ProviderReport, RequestSpec, ResourceGroup

#: Virtual seconds for which a request may be repeated: less than the shortest retention of an answer.
_REPEATABLE = 100.0
FLAVORS = tuple(Flavor(name=f"of {n}", vcpus=n, memory_mb=1024 * n, root_gb=10 * n) for n in (1, 2, 3))


class Callers(Requests):
    """All callers of a cloud."""

    def __init__(self, cloud: RunningCloud, story: Story) -> None:
        super().__init__(cloud, story)
        #: The flavor of each resize, by the uuid of its migration.
        self.sizes: dict[str, Flavor] = {}
        #: The number of answers by kind of action and answer.
        self.answers: Counter[str] = Counter()
        #: When a request for destinations was first sent, and the hosts that were disabled then, by request.
        self._decided: dict[str, tuple[float, Mapping[str, float]]] = {}
        self.operators = Operators(cloud, self)
        self.zones = Zones(self)
        self._methods: Methods = {
            "build": self._build,
            "attach": self._attach,
            "detach": self._detach,
            "force down": self._force,
            "force up": self._force,
            "claim": self._claim,
            "contradict": self._contradict,
            "repeat": self._repeat,
            **self.operators.methods,
            **self.zones.methods,
            **Seats(self).methods,
            **Writers(self).methods,
        }

    def ask(self, action: Action) -> None:
        """Start a request; nobody waits for its answer."""
        self.at_once(action, partial(self._ask, action))

    def _ask(self, action: Action) -> None:
        try:
            self._methods.get(action.kind, self._order)(action)
        except errors.MoorageError as refusal:
            self.answers[f"{action.kind}: {type(refusal).__name__}"] += 1
            raise
        self.answers[f"{action.kind}: done"] += 1

    # --- Actions ------------------------------------------------------------------------------------------------------

    def _build(self, action: Action) -> None:
        # Few requests are for many servers.
        count = (1, 1, 1, 1, 2, 1, 1, 1, 1, 5)[action.choice % 10]
        message = self._build_of(action, count)
        self.servers[action.server] = message.instance_uuids[0]
        self.again(lambda: self._ordered(action.kind, message.instance_uuids, message))

    def _build_of(self, action: Action, count: int, *more: object) -> BuildInstances:
        """Return the request of a build, and note what it may lead to."""
        uuids = tuple(self.uuid("server", action.number, number, *more) for number in range(count))
        flavor = FLAVORS[action.choice % len(FLAVORS)]
        groups = [*self.groups.values()]
        group = [*groups[:2], None, groups[2 + action.choice // 32 % 3]][action.choice // 8 % 4]
        spec = RequestSpec(project_id="p", user_id="u", flavor=flavor, server_group=group)
        for uuid in uuids:
            self.told[uuid].flavors.append(flavor)
            self.told[uuid].group = None if group is None else group.uuid
        return BuildInstances(request_id=self.request_id(action), request_spec=spec, instance_uuids=uuids)

    def _contradict(self, action: Action) -> None:
        """Send two requests with one id and different content: at most one of them may be accepted."""
        messages = [self._build_of(action, 1, number) for number in range(2)]
        builds = [partial(self._ordered, "build", one.instance_uuids, one) for one in messages]
        broken = f"promise 4: two requests with the id {self.request_id(action)} are accepted"
        self.compete(action, builds, broken)

    def _order(self, action: Action) -> None:
        uuid = self.servers[action.server]
        if uuid is None:
            return
        plain: dict[str, Any] = {"request_id": self.request_id(action), "instance_uuid": uuid}
        # Half of the actions leave the choice to the scheduler.
        moving = {**plain, "host": self.host_of(action) if action.choice % 2 else None}
        flavor = FLAVORS[action.choice // 2 % len(FLAVORS)]
        orders: dict[str, Callable[[], Mutation[Any]]] = {
            "delete": lambda: DeleteInstance(**plain),
            "migrate": lambda: MigrateInstance(**moving),
            "resize": lambda: ResizeInstance(**moving, flavor=flavor),
            "confirm": lambda: ConfirmMigration(**plain),
            "revert": lambda: RevertMigration(**plain),
            "live-migrate": lambda: LiveMigrateInstance(**moving),
            "abort": lambda: AbortMigration(**plain),
            "evacuate": lambda: EvacuateInstance(**moving),
            "shelve": lambda: ShelveInstance(**plain),
            "unshelve": lambda: UnshelveInstance(**moving),
            "rebuild": lambda: RebuildInstance(**plain, image=Image(id=f"image {action.choice % 3}")),
        }
        message = orders[action.kind]()
        if action.kind == "resize":
            self.told[uuid].flavors.append(flavor)
            self.sizes[ids.derived(message.request_id, "migration")] = flavor
        self.again(lambda: self._ordered(action.kind, (uuid,), message))

    def _ordered(self, kind: str, uuids: Iterable[str], message: Mutation[Any]) -> None:
        order = Order(kind)
        for uuid in uuids:
            self.told[uuid].orders.append(order)
        with noted(order):
            self.send("conductor", message)

    def _attach(self, action: Action) -> None:
        uuid = self.servers[action.server]
        if uuid is None:
            return
        order = GroupOrder("attach", f"_group{action.number}", {"VGPU": 1 + action.choice % 2})
        message = AttachResource(
            request_id=self.request_id(action),
            instance_uuid=uuid,
            suffix=order.suffix,
            group=ResourceGroup(resources=order.resources),
        )
        self.again(lambda: self._ordered_group(uuid, order, message))

    def _detach(self, action: Action) -> None:
        uuid = self.servers[action.server]
        groups = [] if uuid is None else [one for one in self.told[uuid].attached if one.kind == "attach"]
        if uuid is None or not groups:
            return
        of = groups[action.choice % len(groups)]
        message = DetachResource(request_id=self.request_id(action), instance_uuid=uuid, suffix=of.suffix)
        self.again(lambda: self._ordered_group(uuid, GroupOrder("detach", of.suffix, of.resources), message))

    def _ordered_group(self, uuid: str, order: GroupOrder, message: AttachResource | DetachResource) -> None:
        # Each repetition has its own outcome.
        order = replace(order)
        self.told[uuid].attached.append(order)
        with noted(order):
            order.operation = self.send("conductor", message).operation_uuid

    def _force(self, action: Action) -> None:
        down = action.kind == "force down"
        self.forced_down = self.forced_down or down
        message = SetHost(request_id=self.request_id(action), service_host=self.host_of(action), forced_down=down)
        self.again(lambda: self.send("scheduler", message))

    def _claim(self, action: Action) -> None:
        """Claim a host directly, check the answer, and release the claim after a while."""
        uuid, flavor = self.uuid("claimer", action.number), FLAVORS[action.choice % len(FLAVORS)]
        self.others.add(uuid)
        zone = ZONE if action.choice // 3 % 4 == 0 else None
        spec = RequestSpec(project_id="p", user_id="u", flavor=flavor, availability_zone=zone)
        message = SelectDestinations(
            request_id=self.request_id(action), request_spec=spec, instance_uuids=(uuid,), num_alternates=2
        )
        self.again(lambda: self._claim_for(action.choice % 30 / 10, message))

    def _claim_for(self, seconds: float, message: SelectDestinations) -> None:
        try:
            self._select(message)
            KERNEL.sleep(seconds)
        finally:
            # Release it even without an answer: the claim may have been made. A repetition may claim after a refusal.
            for uuid in message.instance_uuids:
                self.call("placement", DeleteAllocations(request_id=ids.fresh(), consumer_uuid=uuid))

    def _select(self, message: SelectDestinations) -> None:
        since, closed = self._decided.setdefault(message.request_id, (KERNEL.now, self.operators.closed_hosts()))
        [selections] = self.send("scheduler", message)
        self.broken += faults_of(selections)
        self.broken += [
            f"promise 8: {one.service_host} is selected, and was disabled before"
            for one in selections
            if self.operators.is_closed_since(one.service_host, closed)
        ]
        if message.request_spec.availability_zone is not None:
            self.broken += [
                f"promise 8: {one.service_host} is selected, and was not in the zone"
                for one in selections
                if not self.zones.may_have(one.service_host, since)
            ]

    def _repeat(self, action: Action) -> None:
        """Repeat an earlier request, whether or not it has been answered yet."""
        asked = [ask for since, ask in self._asked if KERNEL.now < since + _REPEATABLE]
        if asked:
            asked[action.choice % len(asked)]()


def create_providers(cloud: RunningCloud) -> None:
    """Create the providers that belong to no host: the one of licences, and the pool."""
    placement = cloud.client("placement", timeout=20.0)
    placement.call(EnsureResourceClass(request_id=ids.fresh(), name=LICENCE))
    licences = ProviderReport(uuid=LICENCES, name="licences", inventories={LICENCE: Inventory(total=1000)})
    pool = ProviderReport(
        uuid=POOL,
        name="pool",
        inventories={"DISK_GB": Inventory(total=WHOLE["DISK_GB"])},
        traits=(os_traits.MISC_SHARES_VIA_AGGREGATE,),
        aggregates=(MEMBERS,),
    )
    placement.call(ReportProviders(request_id=ids.fresh(), providers=(licences, pool)))
