"""The callers of a simulated cloud: they send the requests of the story, and note the answers."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import os_traits

from harness.cloud import RunningCloud
from harness.simulation.clients.answers import (
    ACCEPTED,
    REFUSED,
    UNKNOWN,
    GroupOrder,
    Told,
    essence,
    faults_of,
    until_answered,
)
from harness.simulation.clients.operators import Operators
from harness.simulation.clients.seats import Seats
from harness.simulation.clients.writers import LICENCE, LICENCES, Writers
from harness.simulation.clients.zones import ZONE, Zones
from harness.simulation.cloud import MEMBERS, POOL, WHOLE
from harness.simulation.machine.kernel import KERNEL, OUTSIDE
from harness.simulation.story import CELLS, HOSTS_OF_A_CELL, SERVERS, Action, Story
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
from moorage.messages.wire import Message, Mutation
from moorage.model import Flavor, Image, Inventory, ProviderReport, RequestSpec, ResourceGroup, ServerGroup

#: Virtual seconds for which a request may be repeated: less than the shortest retention of an answer.
_REPEATABLE = 100.0
FLAVORS = tuple(Flavor(name=f"of {n}", vcpus=n, memory_mb=1024 * n, root_gb=10 * n) for n in (1, 2, 3))
#: Answers that show that something is broken, and not that a request is refused.
_BROKEN = (errors.InternalError, errors.ConfigurationError)


class Callers:
    """All callers of a cloud.

    :param story: the requests of the callers.
    """

    def __init__(self, cloud: RunningCloud, story: Story) -> None:
        self._cloud = cloud
        self._story = story
        self.servers: list[str | None] = [None] * SERVERS
        self.told: dict[str, Told] = defaultdict(Told)
        #: The flavor of each resize, by the uuid of its migration.
        self.sizes: dict[str, Flavor] = {}
        #: Consumers that are not servers.
        self.others: set[str] = set()
        self.forced_down = False
        self.broken: list[str] = []
        #: The number of answers by kind of action and answer.
        self.answers: Counter[str] = Counter()
        #: The requests that may be repeated, each with the time at which it was first sent.
        self._asked: list[tuple[float, Callable[[], object]]] = []
        self._answers: dict[str, Any] = {}
        self._sent: set[str] = set()
        #: When a request for destinations was first sent, and the hosts that were disabled then, by request.
        self._decided: dict[str, tuple[float, Mapping[str, float]]] = {}
        self.operators = Operators(cloud, self)
        self._writers = Writers(self)
        self._seats = Seats(self)
        self.zones = Zones(self)
        self._busy = 0
        rules: tuple[tuple[Any, int], ...] = (
            ("anti-affinity", 1),
            ("affinity", 1),
            ("anti-affinity", 2),
            ("soft-affinity", 1),
            ("soft-anti-affinity", 1),
        )
        uuids = {self.uuid("group", *rule): rule for rule in rules}
        self.groups = {
            uuid: ServerGroup(uuid=uuid, policy=policy, max_server_per_host=most)
            for uuid, (policy, most) in uuids.items()
        }

    def ask(self, action: Action) -> None:
        """Start a request; nobody waits for its answer."""
        self._busy += 1
        KERNEL.start(lambda: self._asking(action), OUTSIDE, str(action))

    def at_once(self, action: Action, do: Callable[[], object]) -> None:
        """Do something beside the caller's own work."""

        def done() -> None:
            try:
                do()
            except _BROKEN as fault:
                self.broken.append(f"{action} is answered with {fault}")
            except errors.MoorageError as refusal:
                KERNEL.note(f"{action}: {refusal}")
            finally:
                self._busy -= 1

        self._busy += 1
        KERNEL.start(done, OUTSIDE, str(action))

    @property
    def are_answered(self) -> bool:
        """True if no caller waits for an answer."""
        return not self._busy

    def _asking(self, action: Action) -> None:
        try:
            if action.kind in Operators.METHODS:
                Operators.METHODS[action.kind](self.operators, action)
            elif action.kind in Zones.METHODS:
                Zones.METHODS[action.kind](self.zones, action)
            elif action.kind in Seats.METHODS:
                Seats.METHODS[action.kind](self._seats, action)
            elif action.kind in Writers.METHODS:
                Writers.METHODS[action.kind](self._writers, action)
            else:
                self._METHODS.get(action.kind, Callers._order)(self, action)
            self.answers[f"{action.kind}: done"] += 1
        except _BROKEN as fault:
            self.broken.append(f"{action} is answered with {fault}")
        except errors.MoorageError as refusal:
            self.answers[f"{action.kind}: {type(refusal).__name__}"] += 1
            KERNEL.note(f"{action}: {refusal}")
        finally:
            self._busy -= 1

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
        won: list[BuildInstances] = []

        def build(message: BuildInstances) -> None:
            self._ordered("build", message.instance_uuids, message)
            won.append(message)
            if len(won) > 1:
                self.broken.append(f"promise 4: two requests with the id {message.request_id} are accepted")

        for number in range(2):
            message = self._build_of(action, 1, number)
            self.at_once(action, partial(build, message))

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
        outcome = UNKNOWN
        places = [(self.told[uuid].orders, len(self.told[uuid].orders)) for uuid in uuids]
        for orders, _place in places:
            orders.append((kind, outcome))
        try:
            self.send("conductor", message)
            outcome = ACCEPTED
        except errors.Unavailable:
            raise
        except errors.MoorageError:
            outcome = REFUSED
            raise
        finally:
            for orders, place in places:
                orders[place] = (kind, outcome)

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
        order = replace(order, outcome=UNKNOWN)
        self.told[uuid].attached.append(order)
        try:
            order.operation = self.send("conductor", message).operation_uuid
            order.outcome = ACCEPTED
        except errors.Unavailable:
            raise
        except errors.MoorageError:
            order.outcome = REFUSED
            raise

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

    _METHODS: Mapping[str, Callable[["Callers", Action], None]] = {
        "build": _build,
        "attach": _attach,
        "detach": _detach,
        "force down": _force,
        "force up": _force,
        "claim": _claim,
        "contradict": _contradict,
        "repeat": _repeat,
    }

    def again(self, ask: Callable[[], object]) -> None:
        """Send a request, and note it so that it may be repeated."""
        self._asked.append((KERNEL.now, ask))
        ask()

    # --- Calls --------------------------------------------------------------------------------------------------------

    def send(self, topic: str, message: Mutation[Any]) -> Any:
        """Send a request until it is answered; all answers to one request must be equal."""
        self._sent.add(message.request_id)
        answer = self.call(topic, message)
        told = essence(answer)
        first = self._answers.setdefault(message.request_id, told)
        if first != told:
            self.broken.append(f"promise 4: {message.method} is answered with {first}, and then with {told}")
        return answer

    def is_first(self, message: Mutation[Any]) -> bool:
        """Return whether a request has not been sent yet."""
        return message.request_id not in self._sent

    def call(self, topic: str, message: Message[Any]) -> Any:
        """Send a message until it is answered."""
        return until_answered(lambda: self._cloud.client(topic, timeout=20.0).call(message))

    def host_of(self, action: Action) -> str:
        """Return the host that an action chooses."""
        return f"{CELLS[action.choice // 2 % 2]}-host-{action.choice // 4 % HOSTS_OF_A_CELL + 1:04d}"

    def request_id(self, action: Action, *more: object) -> str:
        """Return the request id of an action, or of one of its further requests."""
        return self.uuid("request", action.number, *more)

    def uuid(self, *words: object) -> str:
        """Return the uuid of something in this story."""
        return ids.derived("simulation", self._story.seed, *words)


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
