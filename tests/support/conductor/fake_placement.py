"""A placement role that keeps the real promises of claims and moves, for conductors to be tried against."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    AcceptClaim,
    AcknowledgeRequests,
    Claimed,
    DeleteAllocations,
    Done,
    EndMove,
    GetAllocations,
    ListCells,
    ListClaims,
    ListHostsDeclaredDown,
    ListProviderTrees,
    LocateCell,
    MoveEnded,
    Released,
    ReportService,
    SwapClaim,
)
from moorage.messages.wire import Mutation
from moorage.model import Cell, Consumer, Move, ProviderAmounts, ResourceProvider
from moorage.model.inspection import ClaimState

CELL_1 = Cell(uuid=ids.derived("test", "cell1"), name="cell1")


@dataclass
class Held:
    root: str
    claim_id: str
    accepted_by: str | None = None
    #: The instance that a migration holds its source for.
    migration_of: str | None = None


class FakePlacement:
    """Claims, acceptance, moves, tombstones and stored answers, as the placement role promises them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.cells = [CELL_1]
        self.held: dict[str, Held] = {}
        #: What migrations hold of their sources.
        self.migrations: dict[str, Held] = {}
        #: By the residue's uuid, the root provider that it is held on, and the attempt that it was left by.
        self.residues: dict[str, str] = {}
        self.left_by: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.answers: dict[str, tuple[bytes, Any]] = {}
        self.full: set[str] = set()
        self.calls: list[Mutation[Any]] = []
        self.acknowledged: list[str] = []
        #: What others have put on consumers beyond their claims.
        self.foreign: dict[str, dict[str, ProviderAmounts]] = {}
        #: Hosts that their operator has declared down.
        self.declared_down: set[str] = set()
        self.disabled: set[str] = set()
        #: How many more writes find that somebody else has written the consumer since its generation was read.
        self.conflicts = 0

    def once(self, message: Mutation[Any], work: Callable[[], Any]) -> Any:
        with self.lock:
            self.calls.append(message)
            if message.request_id in self.answers:
                digest, answer = self.answers[message.request_id]
                if digest != message.digest():
                    raise errors.RequestIdReused(request_id=message.request_id)
                return answer
            answer = work()
            self.answers[message.request_id] = message.digest(), answer
            return answer

    def claim(self, consumer: str, root: str, generation: int | None = None) -> str:
        self._require_unburied(consumer)
        if consumer in self.held:
            found = self.generations.get(consumer)
            raise errors.ConsumerGenerationConflict(consumer_uuid=consumer, named=generation, found=found)
        if generation is not None:
            self._require_generation(consumer, generation)
        self.held[consumer] = Held(root, ids.fresh())
        self.touch(consumer)
        return self.held[consumer].claim_id

    def begin_move(self, consumer: str, move: Move, root: str, generation: int) -> str:
        """Give the source to the migration and claim the destination; return the new claim."""
        self._require_unburied(consumer)
        self._require_unburied(move.migration_uuid)
        held = self._standing(consumer, move.claim_id)
        self._require_generation(consumer, generation)
        if held.accepted_by is None:
            raise errors.InvalidState(reason="no host has accepted the claim")
        if move.migration_uuid in self.migrations:
            raise errors.AlreadyExists(kind="consumer", name=move.migration_uuid)
        if any(one.migration_of == consumer for one in self.migrations.values()):
            raise errors.InvalidState(reason="another migration of the consumer has not ended")
        self.migrations[move.migration_uuid] = Held(held.root, held.claim_id, held.accepted_by, consumer)
        self.touch(move.migration_uuid)
        self.held[consumer] = Held(root, ids.fresh())
        self.touch(consumer)
        return self.held[consumer].claim_id

    def touch(self, consumer: str) -> int:
        """Bump a consumer's generation, as every write does."""
        self.generations[consumer] = self.generations.get(consumer, 0) + 1
        return self.generations[consumer]

    def hosts_held(self) -> set[str]:
        """Return the root providers of which anything is held."""
        placed = [*self.held.values(), *self.migrations.values()]
        return {held.root for held in placed} | set(self.residues.values())

    def residue_of(self, held: Held, leave: bool, uuid: str | None = None) -> str | None:
        """Leave a residue of what a host has accepted, if that is asked for."""
        if not leave or held.accepted_by is None or held.accepted_by in self.deleted:
            return None
        residue = uuid or held.accepted_by
        self.residues[residue] = held.root
        self.left_by[residue] = held.accepted_by
        return residue

    def _standing(self, consumer: str, claim_id: str) -> Held:
        held = self.held.get(consumer)
        if held is None or held.claim_id != claim_id:
            raise errors.ClaimReleased(consumer_uuid=consumer, claim_id=claim_id)
        return held

    def _require_unburied(self, consumer: str) -> None:
        if consumer in self.deleted:
            raise errors.ConsumerDeleted(consumer_uuid=consumer)

    def _require_generation(self, consumer: str, named: int) -> None:
        if self.conflicts > 0:
            self.conflicts -= 1
            self.touch(consumer)
        if (found := self.generations.get(consumer)) != named:
            raise errors.ConsumerGenerationConflict(consumer_uuid=consumer, named=named, found=found)

    def _migration(self, uuid: str, consumer: str) -> Held:
        migration = self.migrations.get(uuid)
        if migration is None:
            raise errors.ConsumerNotFound(name=uuid)
        assert migration.migration_of == consumer
        return migration

    @serves(ListCells)
    def list_cells(self, message: ListCells) -> list[Cell]:
        return self.cells

    @serves(LocateCell)
    def locate_cell(self, message: LocateCell) -> Cell:
        for cell in self.cells:
            if cell.name == message.name:
                return cell
        raise errors.CellNotFound(name=message.name)

    @serves(ListProviderTrees)
    def list_provider_trees(self, _message: ListProviderTrees) -> list[ResourceProvider]:
        return []

    @serves(ListHostsDeclaredDown)
    def list_hosts_declared_down(self, message: ListHostsDeclaredDown) -> list[str]:
        listed = self.declared_down | self.disabled if message.or_disabled else self.declared_down
        return [host for host in message.service_hosts if host in listed]

    @serves(GetAllocations)
    def get_allocations(self, message: GetAllocations) -> Consumer:
        with self.lock:
            uuid = message.consumer_uuid
            if uuid in self.residues:
                amounts = {self.residues[uuid]: ProviderAmounts(resources={"VCPU": 1})}
                return Consumer(
                    uuid=uuid,
                    consumer_type="RESIDUE",
                    project_id="p",
                    user_id="u",
                    generation=1,
                    allocations=amounts,
                )
            foreign = self.foreign.get(uuid, {})
            if not foreign and (uuid not in self.generations or uuid in self.deleted):
                raise errors.ConsumerNotFound(name=uuid)
            held = self.held.get(uuid)
            return Consumer(
                uuid=uuid,
                consumer_type="INSTANCE",
                project_id="p",
                user_id="u",
                generation=self.generations.get(uuid, 1),
                allocations=foreign,
                claim_id=None if held is None else held.claim_id,
                accepted_by=None if held is None else held.accepted_by,
                root_provider_uuid=None if held is None else held.root,
            )

    @serves(ListClaims)
    def list_claims(self, message: ListClaims) -> list[ClaimState]:
        held = [
            ClaimState(
                consumer_uuid=consumer,
                consumer_type="INSTANCE",
                generation=self.generations.get(consumer, 1),
                claim_id=held.claim_id,
                node=held.root,
                accepted_by=held.accepted_by,
                age=1.0,
            )
            for consumer, held in self.held.items()
        ]
        residues = [
            ClaimState(consumer_uuid=attempt_id, consumer_type="RESIDUE", generation=1, node=root, age=1.0)
            for attempt_id, root in self.residues.items()
        ]
        return [each for each in held + residues if each.consumer_uuid in message.consumer_uuids]

    @serves(AcknowledgeRequests)
    def acknowledge_requests(self, message: AcknowledgeRequests) -> Done:
        self.acknowledged.extend(message.request_ids)
        return Done()

    @serves(ReportService)
    def report_service(self, _message: ReportService) -> Done:
        return Done()

    @serves(DeleteAllocations)
    def delete_allocations(self, message: DeleteAllocations) -> Released:
        answer: Released = self.once(message, lambda: self.released(message))
        return answer

    def released(self, message: DeleteAllocations) -> Released:
        consumer = message.consumer_uuid
        if message.consumer_generation is not None:
            self._require_generation(consumer, message.consumer_generation)
        if message.claim_id is not None:
            held = self._standing(consumer, message.claim_id)
            if message.unaccepted and held.accepted_by:
                raise errors.InvalidState(reason="the claim has been accepted")
        elif consumer not in self.held and not message.for_good:
            raise errors.ConsumerNotFound(name=consumer)
        gone = self.held.pop(consumer, None)
        if message.for_good:
            self.deleted |= {consumer, *message.migration_uuids}
            for residue in [each for each, attempt in self.left_by.items() if consumer in (each, attempt)]:
                self.residues.pop(residue, None)
        elif gone is not None:
            self.touch(consumer)
        residues = [
            self.residue_of(one, message.leave_residue and one.accepted_by not in message.guests_gone)
            for one in (gone, *(self.migrations.pop(uuid, None) for uuid in message.migration_uuids))
            if one is not None
        ]
        return Released(
            residue_uuid=residues[0] if gone is not None else None,
            residue_uuids=tuple(residue for residue in residues if residue is not None),
            extras=self.others(message, gone) if message.for_good or message.claimed_with else {},
        )

    def others(self, message: DeleteAllocations, gone: Held | None) -> dict[str, ProviderAmounts]:
        """Return what others have put on a consumer that goes, as far as its claim is named, and let it go or stay."""
        if gone is not None and gone.claim_id not in message.claimed_with:
            self.foreign.pop(message.consumer_uuid, None)
            return {}
        extras = self.foreign.get(message.consumer_uuid, {})
        if not message.keep_extras:
            self.foreign.pop(message.consumer_uuid, None)
        return extras

    @serves(SwapClaim)
    def swap_claim(self, message: SwapClaim) -> Claimed:
        def work() -> Claimed:
            self._require_unburied(message.consumer_uuid)
            held = self._standing(message.consumer_uuid, message.claim_id)
            if held.accepted_by and not message.guest_gone and not message.leave_residue:
                raise errors.InvalidState(reason="the claim has been accepted")
            if message.migration_uuid is not None:
                self._migration(message.migration_uuid, message.consumer_uuid)
            if message.root_provider_uuid in self.full:
                raise errors.CapacityExceeded(
                    provider_uuid=message.root_provider_uuid, resource_class="VCPU", count=1, refusals=[]
                )
            self.held[message.consumer_uuid] = Held(message.root_provider_uuid, ids.fresh())
            return Claimed(
                claim_id=self.held[message.consumer_uuid].claim_id,
                consumer_generation=self.touch(message.consumer_uuid),
                residue_uuid=self.residue_of(held, message.leave_residue and not message.guest_gone),
            )

        answer: Claimed = self.once(message, work)
        return answer

    @serves(EndMove)
    def end_move(self, message: EndMove) -> MoveEnded:
        answer: MoveEnded = self.once(message, lambda: self.move_ended(message))
        return answer

    def move_ended(self, message: EndMove) -> MoveEnded:
        uuid = message.consumer_uuid
        held = self._standing(uuid, message.claim_id)
        if message.consumer_generation is not None:
            self._require_generation(uuid, message.consumer_generation)
        migration = self._migration(message.migration_uuid, uuid)
        if message.migration_generation is not None:
            self._require_generation(message.migration_uuid, message.migration_generation)
        leaver = migration if message.outcome == "confirm" else held
        if leaver.accepted_by and not message.guest_gone and not message.leave_residue:
            raise errors.InvalidState(reason="the claim has been accepted")
        leave = message.leave_residue and not message.guest_gone
        del self.migrations[message.migration_uuid]
        if message.outcome == "confirm":
            residue = self.residue_of(migration, leave, message.migration_uuid)
        else:
            residue = self.residue_of(held, leave)
            self.held[uuid] = Held(migration.root, migration.claim_id, migration.accepted_by)
        if residue != message.migration_uuid:
            self.deleted.add(message.migration_uuid)
        extras = self.foreign.pop(message.migration_uuid, {}) if message.outcome == "confirm" else {}
        if message.keep_extras and extras:
            self.foreign[uuid] = extras
        return MoveEnded(
            claim_id=self.held[uuid].claim_id,
            consumer_generation=self.touch(uuid),
            residue_uuid=residue,
            extras=extras,
        )

    @serves(AcceptClaim)
    def accept_claim(self, message: AcceptClaim) -> Done:
        with self.lock:
            held = self._standing(message.consumer_uuid, message.claim_id)
            if held.accepted_by not in (None, message.attempt_id):
                raise errors.ClaimReleased(consumer_uuid=message.consumer_uuid, claim_id=message.claim_id)
            held.accepted_by = message.attempt_id
            return Done()
