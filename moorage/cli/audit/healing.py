"""Planning and execution of the remedies for the findings of an audit, by the store and the cells."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moorage import errors, ids
from moorage.cli.audit.collector import owning
from moorage.cli.audit.findings import CONDUCTORS, CloudState, Finding
from moorage.cli.clients import Clients
from moorage.messages import (
    GetAllocations,
    HealConsumers,
    HealInCell,
    ListCells,
    ListOperationsInCell,
    OwnsClaim,
    RecountInventories,
)
from moorage.model import Cell, InstanceHolds, SeenConsumer
from moorage.model.inspection import Holder

LOG = logging.getLogger(__name__)

#: The most instances in one order, and the most providers in one recount.
_AT_ONCE = 100
#: Seconds to wait for the end of another heal in a cell.
_PATIENCE = 60.0
_INTERVAL = 0.2

_BY_RECORDS = frozenset({"unheld", "claim", "short", "leaked"})
_RECOUNT = "count again what is used of the provider"
_UNKNOWN = "release it, if the conductor does not know it either"


@dataclass(slots=True)
class HealPlan:
    """The remedies to carry out, and the remedy of each finding as text."""

    #: The providers whose inventories must be recounted.
    recounted: set[str] = field(default_factory=set)
    #: The consumers as last read from the store, by cell and instance.
    in_cells: dict[str, dict[str, dict[str, SeenConsumer]]] = field(default_factory=dict)
    #: The consumers without a record in any cell, each with the instance to which it would belong.
    released: dict[str, tuple[Holder, str | None]] = field(default_factory=dict)
    #: The text of the remedy by the finding's key.
    remedies: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether there is any remedy."""
        return bool(self.recounted or self.in_cells or self.released)


class Healer:
    """Plans and carries out remedies; a finding that cannot be healed stays, with the reason."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    # --- Planning -----------------------------------------------------------------------------------------------------

    def plan(self, findings: Sequence[Finding], state: CloudState) -> HealPlan:
        """Return the plan that would heal findings; change nothing.

        :raises MoorageError: the store or a cell does not answer.
        """
        plan = HealPlan()
        if state.store is None:
            return plan
        holders = {holder.uuid: holder for holder in state.store.holders if holder.uuid is not None}
        orphans = {uuid for holder in state.store.holders if holder.uuid is None for uuid in holder.held}
        # First the store's own sums and orphans, which need no records.
        for finding in findings:
            if finding.kind == "drifted":
                self._recount(plan, finding, [finding.subject])
            elif finding.kind == "leaked" and finding.instance_uuid is None:
                self._recount(plan, finding, orphans)
        # Then the findings that contradict a cell's records: the cell heals its instances, and a consumer without a
        # record is released.
        by_records = [one for one in findings if one.kind in _BY_RECORDS and one.instance_uuid is not None]
        recorded = self._recorded(state, by_records)
        for finding in by_records:
            found = recorded.get(str(finding.instance_uuid))
            if found is not None:
                self._in_cell(plan, finding, *found, holders)
            elif (holder := holders.get(finding.subject)) is not None:
                plan.remedies[finding.key] = self._release(plan, finding, holder, state)
        return plan

    @staticmethod
    def _recount(plan: HealPlan, finding: Finding, provider_uuids: Iterable[str]) -> None:
        # A deleted provider is named by its number, and cannot be recounted.
        plan.recounted |= {uuid for uuid in provider_uuids if not uuid.startswith("#")}
        plan.remedies[finding.key] = _RECOUNT

    def _recorded(self, state: CloudState, findings: Iterable[Finding]) -> dict[str, tuple[str, InstanceHolds]]:
        """Return the records of the instances of these findings, including deleted ones, each with its cell."""
        wanted = {str(one.instance_uuid) for one in findings}
        known = {
            one.instance_uuid: (cell, one)
            for cell, recorded in state.recorded.items()
            for one in recorded
            if one.instance_uuid in wanted
        }
        # An instance without a record may be deleted. A record may be without what the instance should hold.
        unknown = wanted - known.keys() if state.all_recorded else set()
        in_part = {uuid: cell for uuid, (cell, one) in known.items() if not one.holds}
        for cell in self._cells() if unknown or in_part else ():
            read = sorted(unknown | {uuid for uuid, of in in_part.items() if of == cell.uuid})
            known |= {one.instance_uuid: (cell.uuid, one) for one in owning(self._clients, cell, read)}
        return known

    def _in_cell(
        self, plan: HealPlan, finding: Finding, cell: str, recorded: InstanceHolds, holders: Mapping[str, Holder]
    ) -> None:
        if not recorded.settled:
            plan.remedies[finding.key] = (
                f"nothing yet: the instance is {recorded.state}, and an operation on it may be in progress"
            )
            return
        wanted = {(hold.consumer_uuid, hold.claim_id) for hold in recorded.holds}
        holder = holders.get(finding.subject)
        if finding.kind == "leaked" and holder is not None and (holder.uuid, holder.claim_id) in wanted:
            # For instance, the super conductor does not know the instance.
            plan.remedies[finding.key] = f"nothing: its cell has it on record ({recorded.state})"
            return
        seen = plan.in_cells.setdefault(cell, {}).setdefault(recorded.instance_uuid, {})
        for uuid in (finding.subject, *(hold.consumer_uuid for hold in recorded.holds)):
            if uuid not in seen:
                seen[uuid] = self._seen(uuid, holders.get(uuid))
        plan.remedies[finding.key] = f"set it to what its cell has on record ({recorded.state})"

    def _seen(self, uuid: str, holder: Holder | None) -> SeenConsumer:
        """Return a consumer as last read from the store; a consumer without allocations may have a row, too."""
        if holder is not None:
            return SeenConsumer(generation=holder.generation, claim_id=holder.claim_id)
        try:
            consumer = self._clients.topic("placement").call(GetAllocations(consumer_uuid=uuid))
        except errors.ConsumerNotFound:
            return SeenConsumer()
        return SeenConsumer(generation=consumer.generation, claim_id=consumer.claim_id)

    @staticmethod
    def _release(plan: HealPlan, finding: Finding, holder: Holder, state: CloudState) -> str:
        if not state.all_recorded:
            return "nothing: not all cells have answered, and one of them may have a record of it"
        is_ours = holder.is_residue or holder.owner == CONDUCTORS
        if not is_ours:
            return f"nothing: only its owner may release it: {holder.owner or 'unknown'}"
        plan.released[finding.subject] = (holder, finding.instance_uuid)
        return _UNKNOWN

    # --- Carrying out -------------------------------------------------------------------------------------------------

    def carry_out(self, plan: HealPlan) -> dict[str, str]:
        """Carry out a plan; return the reasons of failures, by instance or consumer.

        :raises MoorageError: the store or a cell does not answer; the whole plan can be carried out again.
        """
        reasons: dict[str, str] = {}
        placement = self._clients.topic("placement")
        for part in _parts(sorted(plan.recounted)):
            placement.call(RecountInventories(request_id=ids.fresh(), provider_uuids=tuple(part)))
        for uuid, (holder, instance_uuid) in sorted(plan.released.items()):
            if (reason := self._release_unknown(holder, instance_uuid)) is not None:
                reasons[uuid] = reason
        for cell in self._cells():
            if cell.uuid in plan.in_cells:
                reasons |= self._heal_in(cell, plan.in_cells[cell.uuid])
        return reasons

    def _release_unknown(self, holder: Holder, instance_uuid: str | None) -> str | None:
        """Release a consumer without a record, unless the super conductor wants it; return the reason of a failure."""
        uuid, for_good = str(holder.uuid), True
        if holder.claim_id is not None:
            question = OwnsClaim(request_id=ids.fresh(), consumer_uuid=instance_uuid or uuid, claim_id=holder.claim_id)
            try:
                if self._clients.topic("conductor").call(question).owned:
                    return "its conductor wants it"
                for_good = holder.migration_of is not None
            except errors.InstanceNotFound:
                LOG.info("No conductor and no cell has a record of consumer %s", uuid)
            except errors.MoorageError as fault:
                return str(fault)
        seen = {uuid: SeenConsumer(generation=holder.generation, claim_id=holder.claim_id)}
        message = HealConsumers(request_id=ids.fresh(), seen=seen, for_good=(uuid,) if for_good else ())
        try:
            self._clients.topic("placement").call(message)
        except errors.Unavailable:
            raise
        except errors.MoorageError as fault:
            return str(fault)
        return None

    def _heal_in(self, cell: Cell, instances: Mapping[str, Mapping[str, SeenConsumer]]) -> dict[str, str]:
        reasons: dict[str, str] = {}
        for part in _parts(sorted(instances)):
            order = HealInCell(request_id=ids.fresh(), instances={uuid: dict(instances[uuid]) for uuid in part})
            begun = self._clients.cell(cell).call(order)
            reasons |= begun.refused | self._ended(cell, begun.operations)
        return reasons

    def _ended(self, cell: Cell, operations: Mapping[str, str]) -> dict[str, str]:
        """Wait until these operations have ended; return the reasons of those that failed, by instance."""
        reasons: dict[str, str] = {}
        left, until = dict(operations), time.monotonic() + _PATIENCE
        while left:
            for instance_uuid, uuid in list(left.items()):
                found = self._clients.cell(cell).call(ListOperationsInCell(uuid=uuid, ended=True))
                if any(state.state == "pending" for state in found):
                    continue
                del left[instance_uuid]
                until = time.monotonic() + _PATIENCE
                if found and found[0].reason is not None:
                    reasons[instance_uuid] = found[0].reason
            if left and time.monotonic() > until:
                return reasons | dict.fromkeys(
                    left, f"cell {cell.name} is still working on it: `moorage operation list`"
                )
            if left:
                time.sleep(_INTERVAL)
        return reasons

    def _cells(self) -> list[Cell]:
        return self._clients.topic("placement").call(ListCells(without_databases=True))


def _parts(values: Sequence[str]) -> Iterable[Sequence[str]]:
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]
