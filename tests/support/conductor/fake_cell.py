"""A cell conductor for the super conductor that keeps its side of the contract, with its own records and no hosts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    AttachResourceInCell,
    BuildInCell,
    CancelMoveInCell,
    CancelUnshelveInCell,
    DeleteInCell,
    DetachResourceInCell,
    Done,
    EndMoveInCell,
    ListMigrationsInCell,
    ListOperationsInCell,
    MoveInCell,
    OperationBegun,
    Ownership,
    OwnsClaimInCell,
    PrepareMoveInCell,
    PrepareUnshelveInCell,
    RebuildInCell,
    ShelveInCell,
    ShowInCell,
    UnshelveInCell,
)
from moorage.messages.wire import Mutation, R
from moorage.model import AttachedResource, Attempt, Instance, Migration, Placement, RequestSpec, Selection
from moorage.model.inspection import OperationSummary
from support.conductor.fake_placement import CELL_1, FakePlacement
from support.placement_store.in_memory import StoredAnswers


@dataclass
class Record:
    spec: RequestSpec
    selection: Selection
    state: str = "active"
    migration_uuid: str | None = None
    reason: str | None = None
    attached: dict[str, AttachedResource] = field(default_factory=dict)
    attempt_id: str = field(default_factory=ids.fresh)

    @property
    def claim_id(self) -> str:
        assert self.selection.claim_id is not None
        return self.selection.claim_id


class FakeCell(StoredAnswers):
    """A cell that starts every guest at once, and finishes a move at once; the move is then confirmed or reverted."""

    def __init__(self, placement: FakePlacement) -> None:
        super().__init__()
        self.placement = placement
        self.instances: dict[str, Record] = {}
        self.migrations: dict[str, Migration] = {}
        self.cancelled: set[str] = set()
        self.received: list[Mutation[Any]] = []
        self.operations: dict[str, OperationSummary] = {}
        #: Resource groups that cannot be attached, and the reason.
        self.no_room: dict[str, str] = {}
        #: Methods that are refused, and the reason.
        self.refusing: dict[str, str] = {}

    def once(self, message: Mutation[Any], work: Callable[[], R]) -> R:
        def unless_refused() -> R:
            if message.method in self.refusing:
                raise errors.InvalidState(reason=self.refusing[message.method])
            return work()

        with self.lock:
            self.received.append(message)
            return super().once(message, unless_refused)

    def done(self, message: Mutation[Any], work: Callable[[], None]) -> Done:
        def and_done() -> Done:
            work()
            return Done()

        return self.once(message, and_done)

    def methods(self) -> list[str]:
        """Return the methods that were called, once for each call."""
        return [message.method for message in self.received]

    def require(self, uuid: str, *states: str) -> Record:
        record = self.instances.get(uuid)
        if record is None:
            raise errors.InstanceNotFound(name=uuid)
        if record.state not in states:
            raise errors.InvalidState(reason=f"instance {uuid} is {record.state}, not {' or '.join(states)}")
        return record

    def started(self, uuid: str, record: Record) -> None:
        """Accept the claim of an instance that has started."""
        record.attempt_id = ids.fresh()
        if (held := self.placement.held.get(uuid)) is not None:
            held.accepted_by, held.accepted_host = record.attempt_id, record.selection.service_host

    @serves(BuildInCell)
    def build_instances(self, message: BuildInCell) -> Done:
        def work() -> None:
            for build in message.builds:
                record = self.instances[build.instance_uuid] = Record(build.request_spec, build.selections[0])
                self.started(build.instance_uuid, record)

        return self.done(message, work)

    @serves(DeleteInCell)
    def delete_instance(self, message: DeleteInCell) -> Done:
        def work() -> None:
            uuid = message.instance_uuid
            record = self.instances[uuid]
            record.state, record.migration_uuid = "deleted", None
            self.placement.release(uuid, for_good=True, migration_uuids=tuple(self.migrations))
            for migration_uuid, migration in self.migrations.items():
                self.migrations[migration_uuid] = msgspec.structs.replace(migration, state="ended")

        return self.done(message, work)

    @serves(ShowInCell)
    def list_instances(self, message: ShowInCell) -> list[Instance]:
        return [self.shown(uuid) for uuid in message.instance_uuids if uuid in self.instances]

    def shown(self, uuid: str) -> Instance:
        record = self.instances[uuid]
        host = None if record.state in ("shelved", "unshelving", "deleted") else record.selection.service_host
        return Instance(
            uuid=uuid,
            project_id=record.spec.project_id,
            user_id=record.spec.user_id,
            flavor=record.spec.flavor,
            state=record.state,
            cell_uuid=CELL_1.uuid,
            host=host,
            claim_id=None if host is None else record.claim_id,
            reason=record.reason,
            attempts=(Attempt(attempt_id=record.attempt_id, number=1, host="a", state="active"),),
            migration_uuid=record.migration_uuid,
            attached=record.attached,
        )

    @serves(OwnsClaimInCell)
    def owns_claim(self, _message: OwnsClaimInCell) -> Ownership:
        return Ownership(owned=False)

    @serves(PrepareMoveInCell)
    def prepare_move(self, message: PrepareMoveInCell) -> Placement:
        def work() -> Placement:
            uuid, migration_uuid = message.instance_uuid, message.migration_uuid
            if migration_uuid in self.cancelled:
                raise errors.InvalidState(reason="the move was cancelled")
            record = self.require(uuid, "active")
            record.state, record.migration_uuid = "moving", migration_uuid
            self.migrations[migration_uuid] = Migration(
                uuid=migration_uuid,
                instance_uuid=uuid,
                kind=message.kind,
                state="placing",
                source_host=record.selection.service_host,
            )
            return Placement(
                request_spec=record.spec,
                selection=record.selection,
                attempt_id=record.attempt_id,
                claim_id=record.claim_id,
            )

        return self.once(message, work)

    @serves(CancelMoveInCell)
    def cancel_move(self, message: CancelMoveInCell) -> Done:
        def work() -> None:
            self.cancelled.add(message.migration_uuid)
            if message.migration_uuid in self.migrations:
                record = self.require(message.instance_uuid, "moving")
                record.state, record.migration_uuid = "active", None
                self.ended(message.migration_uuid, "failed", message.reason)

        return self.done(message, work)

    def ended(self, uuid: str, state: str, reason: str | None = None) -> None:
        self.migrations[uuid] = msgspec.structs.replace(self.migrations[uuid], state=state, reason=reason)

    @serves(MoveInCell)
    def move_instance(self, message: MoveInCell) -> Done:
        def work() -> None:
            record = self.require(message.instance_uuid, "moving")
            assert record.migration_uuid == message.migration_uuid
            record.spec, record.selection, record.state = message.request_spec, message.selections[0], "moved"
            self.started(message.instance_uuid, record)
            self.migrations[message.migration_uuid] = msgspec.structs.replace(
                self.migrations[message.migration_uuid],
                state="moved",
                destination_host=message.selections[0].service_host,
            )

        return self.done(message, work)

    @serves(EndMoveInCell)
    def end_move(self, message: EndMoveInCell) -> Done:
        def work() -> None:
            if message.outcome == "abort":
                # As a cell that waits for the hand-over: it only keeps in mind that the move is aborted.
                self.require(message.instance_uuid, "moving")
                return
            record = self.require(message.instance_uuid, "moved")
            assert record.migration_uuid is not None
            if message.migration_uuid not in (None, record.migration_uuid):
                raise errors.StaleOrder(instance_uuid=message.instance_uuid, reason=f"not {message.migration_uuid}")
            self.ended(record.migration_uuid, f"{message.outcome}ed")
            self.placement.release(record.migration_uuid, for_good=True)
            record.state, record.migration_uuid = "active", None

        return self.done(message, work)

    @serves(ShelveInCell)
    def shelve_instance(self, message: ShelveInCell) -> Done:
        def work() -> None:
            self.require(message.instance_uuid, "active").state = "shelved"
            self.placement.release(message.instance_uuid)

        return self.done(message, work)

    @serves(PrepareUnshelveInCell)
    def prepare_unshelve(self, message: PrepareUnshelveInCell) -> RequestSpec:
        def work() -> RequestSpec:
            record = self.require(message.instance_uuid, "shelved", "unshelving")
            record.state = "unshelving"
            return record.spec

        return self.once(message, work)

    @serves(CancelUnshelveInCell)
    def cancel_unshelve(self, message: CancelUnshelveInCell) -> Done:
        def work() -> None:
            record = self.require(message.instance_uuid, "unshelving", "shelved")
            record.state, record.reason = "shelved", message.reason

        return self.done(message, work)

    @serves(UnshelveInCell)
    def unshelve_instance(self, message: UnshelveInCell) -> Done:
        def work() -> None:
            record = self.require(message.instance_uuid, "unshelving")
            record.state, record.selection, record.reason = "active", message.selections[0], None
            self.started(message.instance_uuid, record)

        return self.done(message, work)

    @serves(RebuildInCell)
    def rebuild_instance(self, message: RebuildInCell) -> Done:
        def work() -> None:
            record = self.require(message.instance_uuid, "active")
            record.spec = msgspec.structs.replace(record.spec, image=message.image)

        return self.done(message, work)

    @serves(AttachResourceInCell)
    def attach_resource(self, message: AttachResourceInCell) -> OperationBegun:
        def work() -> OperationBegun:
            record, suffix = self.require(message.instance_uuid, "active"), message.suffix
            if suffix not in self.no_room:
                resources = message.group.resources
                record.attached[suffix] = AttachedResource(resources=resources, provider_uuid=ids.derived("nic"))
            return self.ended_operation("attach", message.instance_uuid, self.no_room.get(suffix))

        return self.once(message, work)

    @serves(DetachResourceInCell)
    def detach_resource(self, message: DetachResourceInCell) -> OperationBegun:
        def work() -> OperationBegun:
            record = self.require(message.instance_uuid, "active")
            if record.attached.pop(message.suffix, None) is None:
                raise errors.NotFound(kind="resource group", name=message.suffix)
            return self.ended_operation("detach", message.instance_uuid, None)

        return self.once(message, work)

    def ended_operation(self, kind: str, instance_uuid: str, reason: str | None) -> OperationBegun:
        operation = OperationSummary(
            uuid=ids.fresh(),
            kind=kind,
            subject=instance_uuid,
            request_id="r",
            step="write",
            step_number=2,
            state="done" if reason is None else "failed",
            tries=0,
            reason=reason,
            cell_uuid=CELL_1.uuid,
            age=1.0,
            idle=1.0,
        )
        self.operations[operation.uuid] = operation
        return OperationBegun(operation_uuid=operation.uuid)

    @serves(ListOperationsInCell)
    def list_operations(self, message: ListOperationsInCell) -> list[OperationSummary]:
        return [one for uuid, one in self.operations.items() if message.uuid in (None, uuid)]

    @serves(ListMigrationsInCell)
    def list_migrations(self, message: ListMigrationsInCell) -> list[Migration]:
        return [self.migrations[uuid] for uuid in message.uuids if uuid in self.migrations]
