"""A placement role for tests of conductors: an in-memory store in which every named host has room."""

from collections.abc import Callable
from typing import Any

from moorage import ids
from moorage.bus.bus import serves
from moorage.messages import (
    AcknowledgeRequests,
    DeleteAllocations,
    Done,
    EndMove,
    ListHostsDeclaredDown,
    PutAllocations,
    ReportService,
    SwapClaim,
)
from moorage.messages.wire import Mutation, R
from moorage.model import Cell, Inventory, Move
from placement_store.claims.claim import NewClaim
from support.placement_store.builders import Store
from support.placement_store.fake_cell_list import FakeCellList
from support.placement_store.in_memory import InMemoryPlacement
from support.placement_store.model import Held, described
from support.placement_store.model.basis import Holder, Provider

CELL_1 = Cell(uuid=ids.derived("test", "cell1"), name="cell1")
#: The amounts that an instance claims, and the inventory of every host.
AMOUNTS = {"VCPU": 1, "MEMORY_MB": 1024}
PLENTY = {name: Inventory(total=10**6) for name in (*AMOUNTS, "DISK_GB", "VGPU", "NET_BW_EGR_KILOBIT_PER_SEC")}


class FakePlacement(InMemoryPlacement, FakeCellList):
    """Keep the contract of the store, record calls, and fail if a test requests it."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = [CELL_1]
        #: Root providers without room for further claims.
        self.full: set[str] = set()
        self.calls: list[Mutation[Any]] = []
        self.acknowledged: list[str] = []
        #: Hosts that an operator has forced down.
        self.declared_down: set[str] = set()
        self.disabled: set[str] = set()
        #: Hosts that an operator has deleted.
        self.deleted_hosts: set[str] = set()
        #: The number of further writes that find a consumer changed since its generation was read.
        self.conflicts = 0

    def once(self, message: Mutation[Any], work: Callable[[], R]) -> R:
        with self.lock:
            self.calls.append(message)
            return super().once(message, work)

    def carry_out(self, message: Any) -> Any:
        with self.lock:
            if isinstance(message, SwapClaim):
                self.provide(message.root_provider_uuid, *message.claimed.allocations)
            if isinstance(message, PutAllocations):
                self.provide(*message.wanted.allocations)
            is_guarded = isinstance(message, DeleteAllocations | EndMove) and message.consumer_generation is not None
            if is_guarded and self.conflicts > 0:
                self.conflicts -= 1
                self.touch(message.consumer_uuid)
            return super().carry_out(message)

    def provide(self, *uuids: str) -> None:
        """Create providers; full ones have no inventory, all others have plenty."""
        for uuid in uuids:
            provider = self.model.providers.setdefault(uuid, Provider(uuid, uuid))
            provider.inventories = {} if uuid in self.full else PLENTY

    # --- Writes of other clients ------------------------------------------------------------------------------------

    def claim(self, consumer: str, root: str, generation: int | None = None, *, keep_held: bool = False) -> str:
        """Claim a host, as the scheduler does, and return the claim."""
        self.provide(root)
        return self.claim_all([self._new(consumer, root, generation)], keep_held=keep_held)[0].claim_id

    def claim_for_move(self, consumer: str, move: Move, root: str, generation: int) -> str:
        """Give the source to the migration and claim the destination; return the new claim."""
        self.provide(root)
        return self.begin_move(self._new(consumer, root, generation), move).claim_id

    @staticmethod
    def _new(consumer: str, root: str, generation: int | None) -> NewClaim:
        return NewClaim(
            consumer_uuid=consumer,
            root_provider_uuid=root,
            allocations={root: AMOUNTS},
            project_id="p",
            user_id="u",
            owner="conductor",
            consumer_generation=generation,
        )

    def release(self, consumer: str, **more: Any) -> None:
        """Release a consumer without recording the call."""
        self.carry_out(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=consumer, **more))

    def put_beside(self, consumer: str, provider: str, **amounts: int) -> None:
        """Write more amounts to a consumer than it claimed, as other clients do over HTTP."""
        holder = self.model.holders.get(consumer, Holder())
        held = described(holder.held) | {provider: described(holder.held).get(provider, {}) | amounts}
        kind = holder.consumer_type or "INSTANCE"
        wanted = Store.wanted(held, holder.generation or None, project_id="p", user_id="u", consumer_type=kind)
        self.carry_out(PutAllocations(request_id=ids.fresh(), consumer_uuid=consumer, wanted=wanted))

    def touch(self, consumer: str) -> int:
        """Bump a consumer's generation, as every write does."""
        self.model.holders[consumer].generation += 1
        return self.model.holders[consumer].generation

    # --- State ------------------------------------------------------------------------------------------------------

    @property
    def held(self) -> dict[str, Holder]:
        """Return the instances that have a claim."""
        return {uuid: one for uuid, one in self._holders() if one.claim_id and one.migration_of is None}

    @property
    def migrations(self) -> dict[str, Holder]:
        """Return the migrations that hold their sources."""
        return {uuid: one for uuid, one in self._holders() if one.claim_id and one.migration_of is not None}

    @property
    def residues(self) -> dict[str, str | None]:
        """Return the root provider of each residue."""
        return {uuid: one.root for uuid, one in self._holders() if one.accepted_by and not one.claim_id}

    @property
    def foreign(self) -> dict[str, Held]:
        """Return the foreign allocations of consumers: those of classes that nobody claims."""
        amounts = {uuid: {p: n for p, n in one.held.items() if p[1] not in AMOUNTS} for uuid, one in self._holders()}
        return {uuid: held for uuid, held in amounts.items() if held}

    @property
    def generations(self) -> dict[str, int]:
        """Return the generation of each consumer."""
        return {uuid: one.generation for uuid, one in self._holders()}

    @property
    def deleted(self) -> set[str]:
        """Return the consumers that were deleted for good."""
        return set(self.model.buried)

    def hosts_held(self) -> set[str | None]:
        """Return the root providers of all claims and residues."""
        return {one.root for _, one in self._holders() if one.claim_id or one.accepted_by}

    def _holders(self) -> list[tuple[str, Holder]]:
        with self.lock:
            return list(self.model.holders.items())

    # --- Cells and hosts --------------------------------------------------------------------------------------------

    @serves(ListHostsDeclaredDown)
    def list_hosts_declared_down(self, message: ListHostsDeclaredDown) -> list[str]:
        listed = set(self.deleted_hosts)
        if not message.only_deleted:
            listed |= self.declared_down | (self.disabled if message.or_disabled else set())
        return [host for host in message.service_hosts if host in listed]

    @serves(AcknowledgeRequests)
    def acknowledge_requests(self, message: AcknowledgeRequests) -> Done:
        self.acknowledged.extend(message.request_ids)
        return Done()

    @serves(ReportService)
    def report_service(self, _message: ReportService) -> Done:
        return Done()
