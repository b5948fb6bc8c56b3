"""Attach a resource group to an instance, or detach one: choose a provider, write to the store, record.

The allocations are changed by a plain write that names the consumer's generation. If the write meets a conflict, it was
not carried out and never will be. If it is refused because of missing capacity and was sent more than once, a copy may
still be carried out. So it is fenced by a write that bumps the generation, before another provider is tried.
"""

import logging
from functools import partial

import msgspec
from sqlalchemy import Connection

from conductor.cell import attached_groups
from conductor.cell.context import CellPart
from conductor.cell.payloads import ChooseStep, WriteStep
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance, CellRecords
from conductor.engine import conflict_policy
from conductor.engine.steps import ATTACH, DETACH, CommitStep, Ended, Next, Operation, Outcome, ended, step
from moorage import errors
from moorage.messages import ListAllocationCandidates, ListProviderTrees, PutAllocations
from moorage.model import ConsumerAllocations, ResourceRequest, Selection
from moorage.model.states import InstanceState

LOG = logging.getLogger(__name__)


class CellResources(CellPart):
    """The steps of the operations `attach` and `detach`."""

    # --- choose and read ----------------------------------------------------------------------------------------------

    @step(ATTACH, "choose")
    def choose(self, operation: Operation) -> CommitStep:
        """Find a provider of the host's tree for the group, and compute the consumer's allocations with it."""
        choosing = operation.read(ChooseStep)
        instance, attempt = self._instance_and_attempt(operation, choosing)
        selection = attempt.selection
        consumer = conflict_policy.find_consumer(self._cell.placement, operation.subject)
        if consumer is None or consumer.claim_id != attempt.claim:
            return ended(
                f"instance {instance.uuid} does not hold host {attempt.host} by claim {attempt.claim} any more"
            )
        try:
            found = self._candidates(choosing, selection)
        except (errors.CallerError, errors.PlacementRefused) as fault:
            return ended(str(fault))
        # Exclude providers without room, and those that the group policy `isolate` keeps for other groups.
        out = {
            *choosing.refused,
            *attached_groups.shut_out(instance.spec, selection.allocation_request, consumer.allocations),
        }
        provider_uuid = next((uuid for uuid in found if uuid not in out), None)
        if provider_uuid is None:
            asked = ", ".join(f"{amount} {name}" for name, amount in sorted(choosing.group.resources.items()))
            return ended(f"no provider of host {attempt.host} has room for {asked}, as it is asked for")
        before = conflict_policy.unchanged(consumer)
        after = attached_groups.held_with(before.allocations, provider_uuid, choosing.group.resources)
        writing = WriteStep(choosing=choosing, provider_uuid=provider_uuid, before=before, after=after)
        if attached_groups.is_isolated(instance.spec):
            writing = msgspec.structs.replace(writing, isolated={choosing.suffix: (provider_uuid,)})
        return _next_write(writing)

    def _candidates(self, choosing: ChooseStep, selection: Selection) -> list[str]:
        group = msgspec.structs.replace(choosing.group, in_tree=selection.compute_node_uuid)
        asked = ListAllocationCandidates(request=ResourceRequest(groups={choosing.suffix: group}))
        answer = self._cell.placement.call(asked)
        return [uuid for one in answer.allocation_requests for uuid in one.allocations]

    @step(DETACH, "read")
    def read(self, operation: Operation) -> CommitStep:
        """Find the remaining amounts of the group, and compute the consumer's allocations without them."""
        choosing = operation.read(ChooseStep)
        # A shelved instance has no allocations.
        if choosing.number is None:
            return partial(self._detached, operation, choosing)
        instance, attempt = self._instance_and_attempt(operation, choosing)
        # Read the consumer before the tree: a reshape in between bumps its generation, and the write conflicts.
        consumer = conflict_policy.find_consumer(self._cell.placement, operation.subject)
        if consumer is None:
            return partial(self._detached, operation, choosing)
        selection, before = attempt.selection, conflict_policy.unchanged(consumer)
        trees = self._cell.placement.call(ListProviderTrees(uuids=(selection.compute_node_uuid,)))
        tree = {provider.uuid for provider in trees}
        resources = choosing.group.resources
        after = attached_groups.held_without(before.allocations, selection, choosing.suffix, resources, tree)
        if after == before.allocations:
            return partial(self._detached, operation, choosing)
        writing = WriteStep(choosing=choosing, before=before, after=after)
        if attached_groups.is_isolated(instance.spec):
            writing = msgspec.structs.replace(writing, isolated={choosing.suffix: ()})
        return _next_write(writing)

    # --- write and fence ----------------------------------------------------------------------------------------------

    @step((ATTACH, DETACH), "write")
    def write(self, operation: Operation) -> CommitStep:
        """Write the computed allocations, unless another client has written to the consumer since they were read."""
        writing = operation.read(WriteStep)
        try:
            self._write(operation, writing)
        except errors.ConsumerGenerationConflict as conflict:
            return self._conflict(operation, writing.choosing, conflict)
        except (errors.CallerError, errors.PlacementRefused) as fault:
            return self._refused(operation, writing, fault)
        return self._written(operation, writing)

    def _write(self, operation: Operation, writing: WriteStep) -> None:
        wanted = msgspec.structs.replace(writing.before, allocations=writing.after, isolated=writing.isolated)
        try:
            self._put(operation, writing, "write", wanted)
        except errors.ConsumerGenerationConflict:
            # At step `fence`, step `write` has sent it before.
            if not (operation.is_repeated or operation.step == "fence") or not self._is_written(operation, writing):
                raise

    def _is_written(self, operation: Operation, writing: WriteStep) -> bool:
        """Return whether the consumer is as a write leaves it; then the stored answer of the write has expired."""
        consumer = conflict_policy.find_consumer(self._cell.placement, operation.subject)
        if consumer is None or consumer.generation != (writing.before.consumer_generation or 0) + 1:
            return False
        return conflict_policy.unchanged(consumer).allocations == writing.after

    def _put(self, operation: Operation, writing: WriteStep, what: str, wanted: ConsumerAllocations) -> None:
        self._cell.placement.call(
            PutAllocations(
                request_id=operation.derived(what, writing.choosing.writes),
                consumer_uuid=operation.subject,
                wanted=wanted,
            )
        )

    def _conflict(
        self, operation: Operation, choosing: ChooseStep, conflict: errors.ConsumerGenerationConflict
    ) -> CommitStep:
        following = msgspec.structs.replace(choosing, conflicts=choosing.conflicts + 1)
        if not self._cell.writes.retries(conflict, following.conflicts):
            return ended(str(conflict))
        delay = conflict_policy.BACKOFF.seconds(following.conflicts)
        first = "choose" if operation.kind == ATTACH else "read"
        return lambda _connection: Next(first, following, delay=delay)

    def _refused(self, operation: Operation, writing: WriteStep, fault: errors.MoorageError) -> CommitStep:
        if operation.kind == DETACH or isinstance(fault, errors.ConsumerDeleted):
            return ended(str(fault))
        LOG.info("Provider %s has no room for %s after all: %s", writing.provider_uuid, operation.subject, fault)
        if operation.is_repeated:
            # An earlier copy of the write may still be in flight, and find room when it arrives.
            return lambda _connection: Next("fence", writing)
        return lambda _connection: Next("choose", _other_than(writing))

    @step(ATTACH, "fence")
    def fence(self, operation: Operation) -> CommitStep:
        """Make sure that a refused write is not carried out later, or find out that it was carried out."""
        writing = operation.read(WriteStep)
        try:
            self._put(operation, writing, "fence", writing.before)
        except errors.ConsumerGenerationConflict:
            # Either the write was carried out after all, or another client has written. Send it again with its own
            # request id: in the first case the stored answer is returned, in the second case it conflicts.
            try:
                self._write(operation, writing)
            except errors.ConsumerGenerationConflict:
                return lambda _connection: Next("choose", _other_than(writing))
            return self._written(operation, writing)
        except errors.ConsumerDeleted as fault:
            return ended(str(fault))
        return lambda _connection: Next("choose", _other_than(writing))

    # --- Records ------------------------------------------------------------------------------------------------------

    def _written(self, operation: Operation, writing: WriteStep) -> CommitStep:
        if operation.kind == DETACH:
            return partial(self._detached, operation, writing.choosing)
        return partial(self._attached, operation, writing)

    def _attached(self, operation: Operation, writing: WriteStep, connection: Connection) -> Outcome:
        choosing = writing.choosing
        instance = self._as_it_was(connection, operation, choosing, lock=True)
        record_claim(self._cell.records, connection, instance, writing)
        self._cell.records.change(
            connection,
            instance.uuid,
            request_spec=msgspec.json.encode(
                attached_groups.with_group(instance.spec, choosing.suffix, choosing.group)
            ),
            attached=msgspec.json.encode((*instance.attached, choosing.suffix)),
        )
        LOG.info("Group %s of instance %s is held of %s", choosing.suffix, instance.uuid, writing.provider_uuid)
        return Ended()

    def _detached(self, operation: Operation, choosing: ChooseStep, connection: Connection) -> Outcome:
        suffix = choosing.suffix
        instance = self._as_it_was(connection, operation, choosing, lock=True)
        if choosing.number is not None:
            attempt = self._cell.records.numbered(connection, instance.uuid, choosing.number)
            claimed = attached_groups.claimed_without(
                attempt.selection.allocation_request, suffix, choosing.group.resources
            )
            selection = msgspec.structs.replace(attempt.selection, allocation_request=claimed)
            self._cell.records.change_attempt(connection, attempt.attempt_id, selection=msgspec.json.encode(selection))
        self._cell.records.change(
            connection,
            instance.uuid,
            request_spec=msgspec.json.encode(attached_groups.without_group(instance.spec, suffix)),
            attached=msgspec.json.encode([name for name in instance.attached if name != suffix]),
        )
        LOG.info("Group %s of instance %s is released", suffix, instance.uuid)
        return Ended()

    def _instance_and_attempt(self, operation: Operation, choosing: ChooseStep) -> tuple[CellInstance, AttemptRecord]:
        def work(connection: Connection) -> tuple[CellInstance, AttemptRecord]:
            instance = self._as_it_was(connection, operation, choosing)
            return instance, self._cell.records.current(connection, instance)

        return self._cell.database.read(work)

    def _as_it_was(
        self, connection: Connection, operation: Operation, choosing: ChooseStep, *, lock: bool = False
    ) -> CellInstance:
        """Return the instance; its state is still the one that it had when the operation began."""
        state: InstanceState = "shelved" if choosing.number is None else "active"
        return self._cell.records.expect(connection, operation.subject, state, lock=lock)


def record_claim(records: CellRecords, connection: Connection, instance: CellInstance, writing: WriteStep) -> None:
    """Add an attached group to the allocation request of the current attempt; the store has it, or may have it."""
    choosing = writing.choosing
    attempt = records.current(connection, instance)
    claimed = attached_groups.claimed_with(
        attempt.selection.allocation_request, choosing.suffix, str(writing.provider_uuid), choosing.group.resources
    )
    selection = msgspec.structs.replace(attempt.selection, allocation_request=claimed)
    records.change_attempt(connection, attempt.attempt_id, selection=msgspec.json.encode(selection))


def _next_write(writing: WriteStep) -> CommitStep:
    numbered = msgspec.structs.replace(writing.choosing, writes=writing.choosing.writes + 1)
    return lambda _connection: Next("write", msgspec.structs.replace(writing, choosing=numbered))


def _other_than(writing: WriteStep) -> ChooseStep:
    choosing = writing.choosing
    return msgspec.structs.replace(choosing, refused=(*choosing.refused, str(writing.provider_uuid)))
