"""Hand the instances of a build over to their cells: the step `hand_over`."""

import logging
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from conductor.engine.rows import grouped
from conductor.engine.step_calls import Calling, run_calls_here
from conductor.engine.steps import BUILD, CommitStep, Ended, Next, Operation, Outcome, Retry, SharedCommit, step
from conductor.engine.waiting_steps import Postponed
from conductor.super.cell_clients import Cells, concurrently, was_refused
from conductor.super.context import SuperPart
from conductor.super.records import instances as super_records
from moorage import errors
from moorage.bus.message_size import in_parts
from moorage.messages import BuildInCell, InstanceBuild
from moorage.model import Value

LOG = logging.getLogger(__name__)


class HandOverStep(Value, frozen=True, kw_only=True):
    """The payload of steps `hand_over` and `release`: the instances to release at the end, and the reason."""

    release: tuple[str, ...] = ()
    reason: str | None = None


class _HandedOver(NamedTuple):
    """The cells that have taken all builds of one operation."""

    operation_uuid: str
    cells: Collection[str]
    payload: HandOverStep


class BuildHandOver(SuperPart):
    """The step that sends the instances of a build to their cells."""

    @step(BUILD, "hand_over")
    def hand_over(self, operation: Operation) -> Calling[CommitStep]:
        """Send each cell its instances, until it answers.

        There is no time-out: a cell that does not answer may have the instances, and may have built them. Meanwhile the
        records of the instances show the reason of the wait, and the instances can be deleted. If the cell was deleted,
        the wait ends with the deletion of its instances.
        """
        builds: dict[str, tuple[InstanceBuild, ...]] = operation.carried_as(dict) or self._super.database.read(
            lambda connection: super_records.to_hand_over(connection, operation.uuid)
        )
        sending = partial(_sending_builds, self._super.cells, operation)
        if len(builds) == 1:
            faults = yield from sending(*next(iter(builds.items())))
        else:
            # Concurrently: a cell that does not answer must not delay the instances of the others.
            faults = yield partial(concurrently, lambda uuid, part: run_calls_here(sending(uuid, part)), builds)
        # If the only fault is a postponed call, wait for room without a thread; then the step sends the same requests.
        if len(faults) == 1 and isinstance(postponed := next(iter(faults.values())), Postponed):
            raise postponed
        if not faults and not operation.is_repeated:
            return SharedCommit(
                self._all_handed_over, _HandedOver(operation.uuid, builds, operation.read(HandOverStep))
            )
        return lambda connection: self._handed_over(connection, operation, builds, faults)

    @staticmethod
    def _all_handed_over(connection: Connection, handed: Sequence["_HandedOver"]) -> list[Outcome]:
        """Record builds that cells have taken when they were sent for the first time."""
        by_cell = grouped((cell_uuid, each.operation_uuid) for each in handed for cell_uuid in each.cells)
        for cell_uuid, operation_uuids in sorted(by_cell.items()):
            super_records.handed_over(connection, operation_uuids, cell_uuid)
        return [
            Next("release", each.payload) if each.payload.release else Ended(each.payload.reason) for each in handed
        ]

    def _handed_over(
        self,
        connection: Connection,
        operation: Operation,
        builds: dict[str, tuple[InstanceBuild, ...]],
        faults: dict[str, errors.MoorageError | Postponed],
    ) -> Outcome:
        payload = operation.read(HandOverStep)
        release, reason, retry = list(payload.release), payload.reason, None
        for cell_uuid, of_cell in builds.items():
            fault = faults.get(cell_uuid)
            uuids = [build.instance_uuid for build in of_cell]
            if fault is None:
                super_records.handed_over(connection, [operation.uuid], cell_uuid)
            elif isinstance(fault, errors.CellNotFound) and not super_records.lock_building(connection, uuids):
                LOG.info("Cell %s was deleted, and so were the instances that it had not taken", cell_uuid)
            elif was_refused(fault) and not operation.is_repeated:
                # The message was sent only once, and the cell has refused it: the cell has none of the instances.
                reason = str(fault)
                super_records.fail(connection, uuids, reason, by_cell=True)
                release += uuids
            else:
                retry = str(fault)
                # The next try waits until the circuit breaker of the cell closes: record the reason at once.
                if (
                    isinstance(fault, errors.CellUnreachable)
                    or operation.tries >= self._super.options.max_unanswered_retries
                ):
                    super_records.note(connection, operation.uuid, cell_uuid, retry)
        if retry is not None:
            return Retry(retry)
        if operation.is_repeated:
            # An earlier try that waited for one cell has kept no payload: find the instances that other cells refused.
            for uuid, why in super_records.refused(connection, operation.uuid).items():
                release, reason = [*release, uuid], reason or why
        if release:
            return Next("release", HandOverStep(release=tuple(dict.fromkeys(release)), reason=reason))
        return Ended(reason)


def _sending_builds(
    cells: Cells, operation: Operation, cell_uuid: str, builds: Sequence[InstanceBuild]
) -> Calling[dict[str, errors.MoorageError | Postponed]]:
    """Send one cell its instances; return the error by cell uuid if it has not taken them.

    :raises MoorageError: the cell has taken some of them and refused others: all are sent again.
    """
    taken = 0
    try:
        for message in _messages(operation, cell_uuid, builds):
            yield from cells.calling(cell_uuid, message)
            taken += len(message.builds)
    except Postponed as fault:
        return {cell_uuid: fault}  # not logged: this is normal under load
    except errors.MoorageError as fault:
        LOG.warning("Cell %s has not taken %d instance(s): %s", cell_uuid, len(builds) - taken, fault)
        if taken and was_refused(fault):
            raise  # returned as a refusal of all of them, it would release them all
        return {cell_uuid: fault}
    LOG.info("Cell %s has taken %d instance(s)", cell_uuid, len(builds))
    return {}


def _messages(operation: Operation, cell_uuid: str, builds: Sequence[InstanceBuild]) -> Iterator[BuildInCell]:
    """Yield the messages with the builds, usually one; they are the same each time."""
    parts = list(in_parts(builds))
    for part in parts:
        # The id names the part, because another release may divide the builds differently; a cell takes each once.
        named = (part[0].instance_uuid, part[-1].instance_uuid) if len(parts) > 1 else ()
        yield BuildInCell(request_id=operation.derived("hand_over", cell_uuid, *named), builds=tuple(part))
