"""Operations on existing servers, in a world of a super conductor and a cell that only keeps records."""

from dataclasses import dataclass, field

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import (
    ConsumerWritten,
    EvacuateInstance,
    GetAllocations,
    GetResourceProvider,
    ListClaims,
    ListMigrations,
    LiveMigrateInstance,
    MigrateInstance,
    PutAllocations,
    ResizeInstance,
    ShowMigration,
)
from moorage.messages.wire import Message, R
from moorage.model import Consumer, Flavor, Migration, ProviderAmounts, ResourceProvider
from moorage.model.inspection import ClaimState
from support.conductor.builders import World, wait_until
from support.conductor.fake_cell import FakeCell
from support.conductor.fake_placement import FakePlacement

LARGE = Flavor(vcpus=4, memory_mb=4096)


class MovingPlacement(FakePlacement):
    """Takes what others put on consumers, too; those that hold nothing of their own stay known by their generation."""

    def __init__(self) -> None:
        super().__init__()
        self.extras: dict[str, dict[str, ProviderAmounts]] = {}

    def require_generation(self, uuid: str, named: int | None) -> None:
        found = self.generations.get(uuid, 1 if uuid in self.migrations else None)
        if found != named:
            raise errors.ConsumerGenerationConflict(consumer_uuid=uuid, named=named, found=found)

    @serves(GetAllocations)
    def get_allocations(self, message: GetAllocations) -> Consumer:
        found = super().get_allocations(message)
        fields = {name: getattr(found, name) for name in Consumer.__struct_fields__}
        return Consumer(**fields | {"allocations": self.extras.get(message.consumer_uuid, {})})

    @serves(ListClaims)
    def list_claims(self, message: ListClaims) -> list[ClaimState]:
        sources = [
            ClaimState(
                consumer_uuid=uuid,
                consumer_type="MIGRATION",
                generation=1,
                claim_id=held.claim_id,
                node=held.root,
                accepted_by=held.accepted_by,
                age=1.0,
            )
            for uuid, held in self.migrations.items()
            if uuid in message.consumer_uuids
        ]
        return super().list_claims(message) + sources

    @serves(GetResourceProvider)
    def get_resource_provider(self, message: GetResourceProvider) -> ResourceProvider:
        if message.uuid != ids.derived("nic"):
            raise errors.ProviderNotFound(name=message.uuid)
        return ResourceProvider(uuid=message.uuid, name="a_nic0", generation=1, root_provider_uuid=message.uuid)

    @serves(PutAllocations)
    def put_allocations(self, message: PutAllocations) -> ConsumerWritten:
        def work() -> ConsumerWritten:
            uuid, wanted = message.consumer_uuid, message.wanted
            self._require_unburied(uuid)
            self.require_generation(uuid, wanted.consumer_generation)
            self.extras[uuid] = wanted.allocations
            return ConsumerWritten(consumer_generation=self.touch(uuid))

        answer: ConsumerWritten = self.once(message, work)
        return answer


@dataclass
class MovingWorld(World):
    cell: FakeCell = field(init=False)

    def __post_init__(self) -> None:
        self.cell = FakeCell(self.placement)

    @property
    def moving_placement(self) -> MovingPlacement:
        assert isinstance(self.placement, MovingPlacement)
        return self.placement

    def order(self, message: Message[R]) -> R:
        return self.bus.client("conductor").call(message)

    def active(self) -> str:
        """Return a server that runs."""
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
        """Return how many migrations the super conductor does not yet know to be over."""
        database = Database(self.conf.database.connection, "test")
        with database.engine.connect() as connection:
            found: int = connection.exec_driver_sql(
                "SELECT COUNT(*) FROM conductor_migrations WHERE state IN ('placing', 'moving')"
            ).scalar_one()
        database.close()
        return found
