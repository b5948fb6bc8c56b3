"""A cloud of two cells, and actors that perform random operations on its servers."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.cloud import CloudSpec
from harness.waiting import wait_until
from moorage import errors, failpoints, ids
from moorage.messages import (
    AbortMigration,
    AttachResource,
    BuildInstances,
    ConfirmMigration,
    CreateResourceProvider,
    DeleteInstance,
    DetachResource,
    EnsureResourceClass,
    EvacuateInstance,
    GetAllocations,
    LiveMigrateInstance,
    MigrateInstance,
    PutAllocations,
    RebuildInstance,
    ResizeInstance,
    RevertMigration,
    SetHost,
    SetInventories,
    ShelveInstance,
    ShowInstance,
    UnshelveInstance,
)
from moorage.messages.wire import Mutation
from moorage.model import ConsumerAllocations, Flavor, Image, Instance, Inventory, ProviderAmounts, RequestSpec
from support.operations.cloud import Crash, TroublesomeCloud
from support.operations.port_room import NICS, bandwidth
from support.operations.room import LARGE, LICENCE, SMALL, until_answered

SERVERS, HOSTS = 10, 6
SPEC = RequestSpec(project_id="p", user_id="u", flavor=SMALL)
#: The operations that an actor may perform on one of the servers.
DEEDS = (
    "build",
    "delete",
    "migrate",
    "resize",
    "resize back",
    "confirm",
    "revert",
    "live-migrate",
    "abort",
    "evacuate",
    "shelve",
    "unshelve",
    "rebuild",
    "attach",
    "attach",
    "detach",
    "write",
    "force down",
    "force up",
    "restart",
)
#: One operation: its kind, the server, and the host.
Deed = tuple[str, int, int]
#: Answers that show that something is broken, and not that an order is refused.
_BROKEN = (errors.InternalError, errors.ConfigurationError)

PLAN = CloudSpec(
    hosts=HOSTS,
    cells=2,
    schedulers=2,
    settings={
        "rpc": {"call_timeout": 20.0},
        "conductor": {"report_interval": 0.2, "retry_backoff": 0.05, "delete_patience": 0.5, "lease_seconds": 10.0},
        "compute": {"report_interval": 0.2, "stop_timeout": 0.1},
        "placement": {"reconcile_after": 1.0, "reconcile_interval": 0.5},
        # There is little room: with so many moves under way, some find no host.
        "fake_driver": {"vcpus": 8, "fail_rate": 0.15, "live_migration_seconds": 0.05, **NICS},
    },
)


class Mishaps:
    """Loses answers and forgets the results of steps at random, wherever that can happen."""

    def __init__(self) -> None:
        self._random = random.Random()
        self._rate = 0.0

    def begin(self, seed: int, rate: float) -> None:
        self._random, self._rate = random.Random(seed), rate

    def end(self) -> None:
        self._rate = 0.0

    def __call__(self, name: str) -> None:
        if not self._rate or self._random.random() >= self._rate:
            return
        if ".answered." in name or name.startswith("answered.conductor"):
            raise failpoints.Dropped(name)
        if name.startswith("step.") and name.endswith(".done"):
            raise Crash


@dataclass
class RandomClients:
    """Clients of one cloud, the servers that they share, and the answers to them."""

    cloud: TroublesomeCloud
    servers: list[str] = field(default_factory=list)
    #: The flavor of each resize, by the uuid of its migration.
    sizes: dict[str, Flavor] = field(default_factory=dict)
    licences: str = field(default_factory=ids.fresh)
    answers: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def furnish(self) -> None:
        """Create a provider from which others write to the consumers of servers."""
        placement = self.cloud.client("placement")
        placement.call(EnsureResourceClass(request_id=ids.fresh(), name=LICENCE))
        made = placement.call(CreateResourceProvider(request_id=ids.fresh(), uuid=self.licences, name=self.licences))
        placement.call(
            SetInventories(
                request_id=ids.fresh(),
                uuid=self.licences,
                generation=made.generation,
                inventories={LICENCE: Inventory(total=10_000)},
            )
        )

    def begin(self) -> None:
        """Build the servers."""
        self.servers = [ids.fresh() for _ in range(SERVERS)]
        for uuid in self.servers:
            self.order(BuildInstances(request_id=ids.fresh(), request_spec=SPEC, instance_uuids=(uuid,)))
        wait_until(lambda: all(self.show(uuid).state != "building" for uuid in self.servers), "all to be built")

    def act(self, deeds: Sequence[Deed]) -> None:
        """Perform one operation after another, whatever the outcome of each.

        :raises MoorageError: an answer shows that something is broken.
        """
        for what, server, host in deeds:
            try:
                self._do(what, server, host)
                answer = "done"
            except _BROKEN:
                raise
            except errors.MoorageError as refusal:
                answer = type(refusal).__name__
            with self._lock:
                self.answers[f"{what}: {answer}"] += 1

    def _do(self, what: str, server: int, number: int) -> None:
        uuid, host = self.servers[server], self.host(number)
        plain: dict[str, Any] = {"request_id": ids.fresh(), "instance_uuid": uuid}
        # Half of the numbers leave the choice to the scheduler.
        moving = {**plain, "host": host if number % 2 else None}
        others: dict[str, Callable[[], object]] = {
            "build": lambda: self._build(server),
            "resize": lambda: self._resize(moving, LARGE),
            "resize back": lambda: self._resize(moving, SMALL),
            "write": lambda: self._write(uuid, number),
            "force down": lambda: self.force(host, down=True),
            "force up": lambda: self.force(host, down=False),
            "restart": lambda: self._restart(number),
        }
        orders: dict[str, Callable[[], Mutation[Any]]] = {
            "delete": lambda: DeleteInstance(**plain),
            "migrate": lambda: MigrateInstance(**moving, drop_extras=True),
            "confirm": lambda: ConfirmMigration(**plain),
            "revert": lambda: RevertMigration(**plain),
            "live-migrate": lambda: LiveMigrateInstance(**moving, drop_extras=True),
            "abort": lambda: AbortMigration(**plain),
            "evacuate": lambda: EvacuateInstance(**moving, drop_extras=True),
            "shelve": lambda: ShelveInstance(**plain),
            "unshelve": lambda: UnshelveInstance(**moving),
            "rebuild": lambda: RebuildInstance(**plain, image=Image(id=f"image {number}")),
            "attach": lambda: AttachResource(**plain, suffix=f"_port{number % 2}", group=bandwidth(100 * (number + 3))),
            "detach": lambda: DetachResource(**plain, suffix=self._attached(uuid)),
        }
        if what in others:
            others[what]()
        else:
            self.order(orders[what]())

    def _attached(self, uuid: str) -> str:
        """Return one of the groups that are attached to a server, or the name of one that is not if it has none."""
        return next(iter(self.show(uuid).attached), "_port")

    def _build(self, server: int) -> None:
        """Build another server in place of a deleted one."""
        with self._lock:
            if self.show(self.servers[server]).state not in ("deleting", "deleted"):
                raise errors.InvalidState(reason="it is there")
            uuid = self.servers[server] = ids.fresh()
        self.order(BuildInstances(request_id=ids.fresh(), request_spec=SPEC, instance_uuids=(uuid,)))

    def _resize(self, moving: Mapping[str, Any], flavor: Flavor) -> None:
        message = ResizeInstance(**moving, flavor=flavor, drop_extras=True)
        self.sizes[ids.derived(message.request_id, "migration")] = flavor
        ordered = self.order(message)
        assert ordered.migration_uuid in self.sizes

    def _write(self, uuid: str, number: int) -> None:
        """Put a licence on a server's consumer, or remove it, with the plain writes of an operator."""
        placement = self.cloud.client("placement")
        known = placement.call(GetAllocations(consumer_uuid=uuid))
        held = {at: one for at, one in known.allocations.items() if at != self.licences}
        if number % 3:
            held[self.licences] = ProviderAmounts(resources={LICENCE: number})
        if not held:
            return
        wanted = ConsumerAllocations(
            allocations=held,
            project_id=known.project_id,
            user_id=known.user_id,
            consumer_type=known.consumer_type,
            consumer_generation=known.generation,
        )
        placement.call(PutAllocations(request_id=ids.fresh(), consumer_uuid=uuid, wanted=wanted))

    def force(self, host: str, *, down: bool) -> None:
        message = SetHost(request_id=ids.fresh(), service_host=host, forced_down=down)
        until_answered(lambda: self.cloud.client("scheduler").call(message))

    def _restart(self, number: int) -> None:
        name = ("conductor", "conductor-cell1", "conductor-cell2", "compute-cell1", "compute-cell2")[number % 5]
        self.cloud.restart(name, self.cloud.life(name))

    def host(self, number: int) -> str:
        return f"cell{number % 2 + 1}-host-{number // 2 % 3 + 1:04d}"

    def order(self, message: Mutation[Any]) -> Any:
        return until_answered(lambda: self.cloud.client("conductor").call(message))

    def show(self, uuid: str) -> Instance:
        return until_answered(lambda: self.cloud.client("conductor").call(ShowInstance(instance_uuid=uuid)))
