"""Operations on existing servers, in a world of a super conductor and a cell that only keeps records."""

from dataclasses import dataclass, field
from typing import TypeVar

from moorage import ids
from moorage.messages import (
    EvacuateInstance,
    ListMigrations,
    LiveMigrateInstance,
    MigrateInstance,
    ResizeInstance,
    ShowMigration,
)
from moorage.messages.wire import Message, R
from moorage.model import Flavor, Migration
from support.conductor.builders import CELL_1, World, wait_until
from support.conductor.fake_cell import FakeCell
from support.conductor.fake_placement import FakePlacement

C = TypeVar("C", bound=FakeCell)

LARGE = Flavor(vcpus=4, memory_mb=4096)
NIC = ids.derived("nic")


class MovingPlacement(FakePlacement):
    """Has the network card that provides the attached resources."""

    def __init__(self) -> None:
        super().__init__()
        self.provide(NIC)
        self.model.providers[NIC].name = "a_nic0"


@dataclass
class MovingWorld(World):
    cell: FakeCell = field(init=False)

    def __post_init__(self) -> None:
        self.cell = FakeCell(self.placement)

    def replace_cell(self, cell: C) -> C:
        """Replace the cell by another one that has the same instances; return it."""
        cell.instances, self.cell = self.cell.instances, cell
        self.serve(f"conductor.{CELL_1.uuid}", cell)
        return cell

    def order(self, message: Message[R]) -> R:
        return self.bus.client("conductor").call(message)

    def active(self) -> str:
        """Return a running server."""
        [uuid] = self.build()
        self.becomes(uuid, "active")
        wait_until(lambda: self.pending("conductor") == 0)
        return uuid

    def migrate(self, uuid: str, host: str | None = None, *, request_id: str | None = None) -> str:
        message = MigrateInstance(request_id=request_id or ids.fresh(), instance_uuid=uuid, host=host)
        return self.order(message).migration_uuid

    def resize(self, uuid: str, host: str | None = None) -> str:
        message = ResizeInstance(request_id=ids.fresh(), instance_uuid=uuid, flavor=LARGE, host=host)
        return self.order(message).migration_uuid

    def live_migrate(self, uuid: str, host: str | None = None) -> str:
        return self.order(LiveMigrateInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host)).migration_uuid

    def evacuate(self, uuid: str, host: str | None = None) -> str:
        return self.order(EvacuateInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host)).migration_uuid

    def migration(self, uuid: str) -> Migration:
        return self.order(ShowMigration(uuid=uuid))

    def migrations(self, uuid: str | None = None, *, ended: bool = True) -> list[Migration]:
        return self.order(ListMigrations(instance_uuid=uuid, ended=ended))

    def comes_to(self, migration_uuid: str, state: str) -> Migration:
        wait_until(lambda: self.migration(migration_uuid).state == state, lambda: self.migration(migration_uuid))
        wait_until(lambda: self.pending("conductor") == 0)
        return self.migration(migration_uuid)

    def pending_migrations(self) -> int:
        """Return the number of migrations that have not ended according to the super conductor."""
        with self.records.engine.connect() as connection:
            found: int = connection.exec_driver_sql(
                "SELECT COUNT(*) FROM conductor_migrations WHERE state IN ('placing', 'moving')"
            ).scalar_one()
        return found
