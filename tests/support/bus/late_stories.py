"""Operations on servers and the work of an operator, which together send every existing mutation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from conductor.schema import cell_hosts
from harness.waiting import wait_until
from moorage import ids
from moorage.messages import (
    AbortMigration,
    AttachResource,
    BuildInstances,
    ConfirmMigration,
    DeleteAllocations,
    DeleteInstance,
    DetachResource,
    EvacuateInstance,
    GetAllocations,
    HealInCell,
    LiveMigrateInstance,
    MigrateInstance,
    RebuildInstance,
    ResizeInstance,
    RevertMigration,
    ShelveInstance,
    ShowMigration,
    ShowOperation,
    UnshelveInstance,
)
from moorage.messages.wire import Mutation
from moorage.model import Image, SeenConsumer
from support.operations import operators_work
from support.operations.cloud import TroublesomeCloud
from support.operations.port_room import PORT, bandwidth
from support.operations.room import LARGE, Room

Order = Callable[[str, str | None], Mutation[Any]]


def _plain(uuid: str) -> dict[str, Any]:
    return {"request_id": ids.fresh(), "instance_uuid": uuid}


@dataclass
class Story:
    """A server in a room, and the operations on it, one after another."""

    room: Room
    cloud: TroublesomeCloud
    uuid: str = ""
    images: int = 0
    spare: list[str] = field(default_factory=list)

    def steps(self) -> Mapping[str, Callable[[], None]]:
        """Return the steps in their order."""
        return {
            "build": self.build,
            "build on the second host": self.build_elsewhere,
            "rebuild": self.rebuild,
            "rebuild again": self.rebuild,
            "migrate and revert": lambda: self.migrate("revert"),
            "migrate and confirm": lambda: self.migrate("confirm"),
            "resize": self.resize,
            "migrate without room": self.refused_move,
            "abort": self.abort,
            "live-migrate": self.live_migrate,
            "attach": self.attach,
            "detach": self.detach,
            "lose and heal": self.lose_and_heal,
            "shelve": self.shelve,
            "unshelve without room": self.refused_unshelving,
            "unshelve": self.unshelve,
            "what operators write": lambda: operators_work.work(self.room, self.cloud, self.uuid),
            "evacuate": self.evacuate,
            "restart the agent": self.restart_agent,
            "delete": self.delete,
        }

    # --- Steps --------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        self.uuid = self.room.build()

    def build_elsewhere(self) -> None:
        uuid = ids.fresh()
        self.room.misbehave("failing", uuid, "destination")
        order = BuildInstances(request_id=ids.fresh(), request_spec=self.room.spec(), instance_uuids=(uuid,))
        self.room.order(order)
        self.room.becomes(uuid, "active")
        self.spare.append(uuid)

    def rebuild(self) -> None:
        self.images += 1
        self.room.order(RebuildInstance(**_plain(self.uuid), image=Image(id=f"image {self.images}")))
        self.room.becomes(self.uuid, "active")

    def migrate(self, end: str) -> None:
        self.begin_to_move()
        self.end_move(end)

    def begin_to_move(self) -> None:
        self.room.order(MigrateInstance(**_plain(self.uuid)))
        self.room.becomes(self.uuid, "moved")

    def end_move(self, end: str) -> None:
        self.room.order((ConfirmMigration if end == "confirm" else RevertMigration)(**_plain(self.uuid)))
        self.room.becomes(self.uuid, "active")

    def resize(self) -> None:
        self.room.order(ResizeInstance(**_plain(self.uuid), flavor=LARGE))
        self.room.becomes(self.uuid, "moved")
        self.room.order(RevertMigration(**_plain(self.uuid)))
        self.room.becomes(self.uuid, "active")

    def refused_move(self) -> None:
        for role in self.room.hosts:
            self.room.fill(role)
        self.ends(self.room.order(MigrateInstance(**_plain(self.uuid))).migration_uuid, "failed")
        self.room.make_room()
        self.room.becomes(self.uuid, "active")

    def abort(self) -> None:
        self.abort_move(self.begin_to_hang())

    def begin_to_hang(self) -> str:
        """Start a live migration that does not end; return it."""
        host = self.room.show(self.uuid).host
        away = next(role for role, name in self.room.hosts.items() if name != host)
        self.room.misbehave("hanging", self.uuid, away)
        begun = self.room.order(LiveMigrateInstance(**_plain(self.uuid), host=self.room.hosts[away]))
        wait_until(
            lambda: self.room.is_building(self.uuid, away),
            lambda: [self.room.show(self.uuid), self.room.seen(self.uuid)],
            15,
        )
        return str(begun.migration_uuid)

    def abort_move(self, migration_uuid: str) -> None:
        self.room.order(AbortMigration(**_plain(self.uuid)))
        self.ends(migration_uuid, "failed")
        self.cloud.faults.forget(self.uuid)

    def live_migrate(self) -> None:
        self.ends(self.room.order(LiveMigrateInstance(**_plain(self.uuid))).migration_uuid, "confirmed")

    def attach(self) -> None:
        self.room.order(AttachResource(**_plain(self.uuid), suffix=PORT, group=bandwidth()))
        self.room.until(lambda: bool(self.room.show(self.uuid).attached), "the port to be attached")

    def detach(self) -> None:
        self.room.order(DetachResource(**_plain(self.uuid), suffix=PORT))
        self.room.until(lambda: not self.room.show(self.uuid).attached, "the port to be detached")

    def lose_and_heal(self) -> None:
        """Release everything that the server holds without its conductors, and let its cell's records restore it."""
        placement, instance = self.room.placement, self.room.show(self.uuid)
        placement.call(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=self.uuid))
        consumer = placement.call(GetAllocations(consumer_uuid=self.uuid))
        seen = SeenConsumer(generation=consumer.generation, claim_id=consumer.claim_id)
        order = HealInCell(request_id=ids.fresh(), instances={self.uuid: {self.uuid: seen}})
        begun = self.cloud.client(f"conductor.{instance.cell_uuid}").call(order)
        shown = ShowOperation(uuid=begun.operations[self.uuid])
        self.room.until(lambda: self.room.ask(shown).state == "done", "it to be healed")

    def shelve(self) -> None:
        self.room.order(ShelveInstance(**_plain(self.uuid)))
        self.room.becomes(self.uuid, "shelved")

    def refused_unshelving(self) -> None:
        for role in self.room.hosts:
            self.room.fill(role)
        self.room.order(UnshelveInstance(**_plain(self.uuid)))
        self.room.until(lambda: bool(self.room.show(self.uuid).reason), "the reason why it is not placed")
        self.room.make_room()

    def unshelve(self) -> None:
        self.room.order(UnshelveInstance(**_plain(self.uuid)))
        self.room.becomes(self.uuid, "active")

    def evacuate(self) -> None:
        host = self.room.show(self.uuid).host
        role = next(role for role, name in self.room.hosts.items() if name == host)
        self.room.misbehave("silent", self.uuid, role)
        self.room.force_down(role)
        self.ends(self.room.order(EvacuateInstance(**_plain(self.uuid))).migration_uuid, "confirmed")
        self.room.force_down(role, False)
        self.cloud.faults.forget(self.uuid)

    def restart_agent(self) -> None:
        before = max(life for life, _returns in self._lives())
        self.cloud.stop_service("compute-cell1")
        self.cloud.add("compute-cell1", self.cloud.compute("cell1", len(self.room.hosts)))
        # The agent has started when its first report is answered; its hosts return with a later report.
        wait_until(lambda: all(life > before and not returns for life, returns in self._lives()), "their return")

    def _lives(self) -> list[tuple[int, bool]]:
        query = select(cell_hosts.c.life, cell_hosts.c.is_returning)
        return [tuple(row) for row in self.cloud.database.read(lambda connection: connection.execute(query).all())]

    def delete(self) -> None:
        for uuid in (self.uuid, *self.spare):
            self.room.order(DeleteInstance(**_plain(uuid)))
            self.room.becomes(uuid, "deleted")

    def ends(self, migration_uuid: str, state: str) -> None:
        self.room.until(lambda: self.room.ask(ShowMigration(uuid=migration_uuid)).state == state, state)
