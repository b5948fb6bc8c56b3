"""The callers of a simulated cloud: they send the requests of the story, and note the answers."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import os_traits

from harness.cloud import RunningCloud
from harness.simulation.cloud import MEMBERS, POOL, WHOLE
from harness.simulation.kernel import KERNEL, OUTSIDE
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
    GetAllocations,
    LiveMigrateInstance,
    MigrateInstance,
    PutAllocations,
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
from moorage.model import (
    ConsumerAllocations,
    Flavor,
    Image,
    Inventory,
    ProviderAmounts,
    ProviderReport,
    RequestSpec,
    ResourceGroup,
    Resources,
    Selection,
    ServerGroup,
)

#: Virtual seconds: how long a caller repeats a request that is not answered, and the pause between two tries.
_PATIENCE, _PAUSE = 240.0, 1.0
LICENCE = "CUSTOM_LICENCE"
#: A provider that belongs to no host; callers write its units to their own consumers.
LICENCES = ids.derived("simulation", "licences")
FLAVORS = tuple(Flavor(name=f"of {n}", vcpus=n, memory_mb=1024 * n, root_gb=10 * n) for n in (1, 2, 3))
#: Answers that show that something is broken, and not that a request is refused.
_BROKEN = (errors.InternalError, errors.ConfigurationError)

ACCEPTED, REFUSED, UNKNOWN = "accepted", "refused", "unknown"


class Broken(Exception):
    """A promise is broken; the text names the promise and the evidence."""


@dataclass
class GroupOrder:
    """An order to attach a resource group to a server, or to detach it, with its outcome.

    :param operation: the operation that carries the order out, once the order is accepted.
    """

    kind: str
    suffix: str
    resources: Resources
    outcome: str = UNKNOWN
    operation: str | None = None


@dataclass
class Told:
    """The answers of a cloud to the orders about one server.

    :param orders: the kind and the outcome of each order: accepted, refused, or unknown because nobody answered.
    """

    orders: list[tuple[str, str]] = field(default_factory=list)
    flavors: list[Flavor] = field(default_factory=list)
    group: str | None = None
    #: Each group has its own suffix; only a group that was attached before can be detached.
    attached: list[GroupOrder] = field(default_factory=list)

    def was(self, kinds: Iterable[str], *outcomes: str) -> bool:
        """Return whether one of these orders had one of these outcomes."""
        return any(kind in kinds and outcome in outcomes for kind, outcome in self.orders)


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
        #: The requests that may be repeated.
        self._asked: list[Callable[[], object]] = []
        self._answers: dict[str, Any] = {}
        self._busy = 0
        self.groups = {
            self._id("group", policy): ServerGroup(uuid=self._id("group", policy), policy=policy)
            for policy in ("anti-affinity", "affinity")
        }

    def ask(self, action: Action) -> None:
        """Start a request; nobody waits for its answer."""
        self._busy += 1
        KERNEL.start(lambda: self._asking(action), OUTSIDE, str(action))

    @property
    def are_answered(self) -> bool:
        """True if no caller waits for an answer."""
        return not self._busy

    def _asking(self, action: Action) -> None:
        try:
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
        count = 2 if action.choice % 5 == 0 else 1
        uuids = tuple(self._id("server", action.number, number) for number in range(count))
        flavor = FLAVORS[action.choice % len(FLAVORS)]
        group = [*self.groups.values(), None, None][action.choice // 8 % 4]
        spec = RequestSpec(project_id="p", user_id="u", flavor=flavor, server_group=group)
        for uuid in uuids:
            self.told[uuid].flavors.append(flavor)
            self.told[uuid].group = None if group is None else group.uuid
        self.servers[action.server] = uuids[0]
        message = BuildInstances(request_id=self._request(action), request_spec=spec, instance_uuids=uuids)
        self._again(lambda: self._ordered(action.kind, uuids, message))

    def _order(self, action: Action) -> None:
        uuid = self.servers[action.server]
        if uuid is None:
            return
        plain: dict[str, Any] = {"request_id": self._request(action), "instance_uuid": uuid}
        # Half of the actions leave the choice to the scheduler.
        moving = {**plain, "host": self._host(action) if action.choice % 2 else None}
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
        self._again(lambda: self._ordered(action.kind, (uuid,), message))

    def _ordered(self, kind: str, uuids: Iterable[str], message: Mutation[Any]) -> None:
        outcome = UNKNOWN
        places = [(self.told[uuid].orders, len(self.told[uuid].orders)) for uuid in uuids]
        for orders, _place in places:
            orders.append((kind, outcome))
        try:
            self._send("conductor", message)
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
            request_id=self._request(action),
            instance_uuid=uuid,
            suffix=order.suffix,
            group=ResourceGroup(resources=order.resources),
        )
        self._again(lambda: self._ordered_group(uuid, order, message))

    def _detach(self, action: Action) -> None:
        uuid = self.servers[action.server]
        groups = [] if uuid is None else [one for one in self.told[uuid].attached if one.kind == "attach"]
        if uuid is None or not groups:
            return
        of = groups[action.choice % len(groups)]
        message = DetachResource(request_id=self._request(action), instance_uuid=uuid, suffix=of.suffix)
        self._again(lambda: self._ordered_group(uuid, GroupOrder("detach", of.suffix, of.resources), message))

    def _ordered_group(self, uuid: str, order: GroupOrder, message: AttachResource | DetachResource) -> None:
        # Each repetition has its own outcome.
        order = replace(order, outcome=UNKNOWN)
        self.told[uuid].attached.append(order)
        try:
            order.operation = self._send("conductor", message).operation_uuid
            order.outcome = ACCEPTED
        except errors.Unavailable:
            raise
        except errors.MoorageError:
            order.outcome = REFUSED
            raise

    def _force(self, action: Action) -> None:
        down = action.kind == "force down"
        self.forced_down = self.forced_down or down
        message = SetHost(request_id=self._request(action), service_host=self._host(action), forced_down=down)
        self._again(lambda: self._send("scheduler", message))

    def _claim(self, action: Action) -> None:
        """Claim a host directly, check the answer, and release the claim after a while."""
        uuid, flavor = self._id("claimer", action.number), FLAVORS[action.choice % len(FLAVORS)]
        self.others.add(uuid)
        spec = RequestSpec(project_id="p", user_id="u", flavor=flavor)
        message = SelectDestinations(
            request_id=self._request(action), request_spec=spec, instance_uuids=(uuid,), num_alternates=2
        )
        try:
            self._again(lambda: self._select(message))
            KERNEL.sleep(action.choice % 30 / 10)
        finally:
            # Release it even without an answer: the claim may have been made.
            self._call("placement", DeleteAllocations(request_id=self._request(action, "release"), consumer_uuid=uuid))

    def _select(self, message: SelectDestinations) -> None:
        [selections] = self._send("scheduler", message)
        self.broken += _faults_of(selections)

    def _write(self, action: Action) -> None:
        """Let two callers write to one consumer, both with the generation that they have read: only one may succeed."""
        uuid = self._id("writer", action.server % 2)
        self.others.add(uuid)
        try:
            generation = self._call("placement", GetAllocations(consumer_uuid=uuid)).generation
        except errors.ConsumerNotFound:
            generation = None
        won: list[int] = []
        self._busy += 2
        for amount in (1 + action.choice % 7, 11 + action.choice % 7):

            def put(amount: int = amount) -> None:
                held = {LICENCES: ProviderAmounts(resources={LICENCE: amount})}
                wanted = ConsumerAllocations(
                    allocations=held,
                    project_id="p",
                    user_id="u",
                    consumer_type="OTHER",
                    consumer_generation=generation,
                )
                request_id = self._request(action, amount)
                try:
                    self._call("placement", PutAllocations(request_id=request_id, consumer_uuid=uuid, wanted=wanted))
                    won.append(amount)
                    if len(won) > 1:
                        self.broken.append(
                            f"promise 7: two writers have both replaced generation {generation} of {uuid}"
                        )
                except errors.MoorageError as refusal:
                    KERNEL.note(f"{action}: {refusal}")
                finally:
                    self._busy -= 1

            KERNEL.start(put, OUTSIDE, str(action))

    def _repeat(self, action: Action) -> None:
        """Repeat an earlier request, whether or not it has been answered yet."""
        if self._asked:
            self._asked[action.choice % len(self._asked)]()

    _METHODS: Mapping[str, Callable[["Callers", Action], None]] = {
        "build": _build,
        "attach": _attach,
        "detach": _detach,
        "force down": _force,
        "force up": _force,
        "claim": _claim,
        "write": _write,
        "repeat": _repeat,
    }

    def _again(self, ask: Callable[[], object]) -> None:
        """Send a request, and note it so that it may be repeated."""
        self._asked.append(ask)
        ask()

    # --- Calls --------------------------------------------------------------------------------------------------------

    def _send(self, topic: str, message: Mutation[Any]) -> Any:
        """Send a request until it is answered; all answers to one request must be equal."""
        answer = self._call(topic, message)
        essence = _essence(answer)
        first = self._answers.setdefault(message.request_id, essence)
        if first != essence:
            self.broken.append(f"promise 4: {message.method} is answered with {first}, and then with {essence}")
        return answer

    def _call(self, topic: str, message: Message[Any]) -> Any:
        return until_answered(lambda: self._cloud.client(topic, timeout=20.0).call(message))

    def _host(self, action: Action) -> str:
        return f"{CELLS[action.choice // 2 % 2]}-host-{action.choice // 4 % HOSTS_OF_A_CELL + 1:04d}"

    def _request(self, action: Action, *more: object) -> str:
        return self._id("request", action.number, *more)

    def _id(self, *words: object) -> str:
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


def until_answered(call: Callable[[], Any]) -> Any:
    """Repeat a call until it is answered, as clients do."""
    end = KERNEL.now + _PATIENCE
    while True:
        try:
            return call()
        except (errors.Unavailable, errors.RequestInProgress):
            if KERNEL.now > end:
                raise
            KERNEL.sleep(_PAUSE)


def _essence(answer: Any) -> object:
    """Return the part that is equal in all answers to one request: a claim may be released in between."""
    if isinstance(answer, list) and answer and isinstance(answer[0], list):
        return [[(one.service_host, one.claim_id) for one in selections] for selections in answer]
    if hasattr(answer, "forced_down"):
        return answer.service_host
    return answer


def _faults_of(selections: list[Selection]) -> list[str]:
    """Describe the errors in the hosts of an answer."""
    first, *alternates = selections
    faults = []
    if first.claim_id is None and not first.released:
        faults.append(f"promise 5: the first of {selections} is not claimed")
    if any(one.claim_id is not None for one in alternates):
        faults.append(f"promise 5: an alternate of {selections} is claimed")
    if len({one.cell_uuid for one in selections}) > 1:
        faults.append(f"promise 5: an alternate of {selections} is in another cell")
    if len({one.service_host for one in selections}) < len(selections):
        faults.append(f"promise 5: a host is twice in {selections}")
    return faults
