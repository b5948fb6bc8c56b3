"""Serve reads of instances: the super conductor's record, merged with the record of the instance's cell."""

import logging
from collections.abc import Sequence
from functools import partial

import msgspec

from conductor.engine.rows import batches, grouped
from conductor.engine.steps import MOVE, UNSHELVE
from conductor.super.cell_clients import concurrently
from conductor.super.context import SuperPart
from conductor.super.records import instances as super_records
from moorage import errors
from moorage.bus.bus import serves
from moorage.messages import MAX_INSTANCES, ListInstances, ShowInCell, ShowInstance
from moorage.model import Instance

LOG = logging.getLogger(__name__)


class SuperView(SuperPart):
    """Serves reads of instances. If a cell does not answer, its instances are returned as recorded here."""

    @serves(ShowInstance)
    def show(self, message: ShowInstance) -> Instance:
        """Return one instance."""
        known = self._super.database.read(
            lambda connection: super_records.read(connection, message.instance_uuid, with_request=message.with_request)
        )
        return self._with_cells([known])[0]

    @serves(ListInstances)
    def list_instances(self, message: ListInstances) -> list[Instance]:
        """Return instances, in the order of their requests."""
        known = self._super.database.read_one_moment(lambda connection: super_records.list_all(connection, message))
        shown = self._with_cells(known)
        if message.deleted or message.limit is not None:
            # Do not filter a page: the client takes a short page for the last one.
            return shown
        return [instance for instance in shown if instance.state != "deleted"]

    def read_current(self, uuid: str) -> Instance:
        """Return one instance merged with its cell's record, so that a decision can be based on it.

        :raises InstanceNotFound: there is no such instance.
        :raises CellUnreachable: its cell does not answer.
        """
        known = self._super.database.read(lambda connection: super_records.read(connection, uuid))
        if known.cell_uuid is None:
            return known
        found = self._read_from_cell(known.cell_uuid, [known])
        return self._with_orders([_merged(known, found.get(uuid), self._super.cells.cell(known.cell_uuid).name)])[0]

    def _with_cells(self, known: Sequence[Instance]) -> list[Instance]:
        """Merge the instances with the records of their cells; record which ones a cell has deleted."""
        by_cell = grouped((instance.cell_uuid, instance) for instance in known if instance.cell_uuid is not None)
        merged = concurrently(self._of_cell, by_cell)
        self._note_deleted(known, merged)
        return self._with_orders([merged.get(instance.uuid, instance) for instance in known])

    def _with_orders(self, instances: Sequence[Instance]) -> list[Instance]:
        """Set the states of instances by pending orders that have not reached their cells yet."""
        uuids = [instance.uuid for instance in instances]
        ordered = self._super.database.read(partial(super_records.being_placed, uuids=uuids))
        return [_ordered(instance, ordered.get(instance.uuid)) for instance in instances]

    def _of_cell(self, cell_uuid: str, known: Sequence[Instance]) -> dict[str, Instance]:
        try:
            cell = self._super.cells.cell(cell_uuid).name
            found = self._read_from_cell(cell_uuid, known)
        except errors.MoorageError as fault:
            LOG.warning("Instances of cell %s are shown without the records of the cell: %s", cell_uuid, fault)
            return {
                instance.uuid: msgspec.structs.replace(instance, reason=instance.reason or str(fault))
                for instance in known
            }
        return {instance.uuid: _merged(instance, found.get(instance.uuid), cell) for instance in known}

    def _read_from_cell(self, cell_uuid: str, known: Sequence[Instance]) -> dict[str, Instance]:
        with_request = any(instance.request_spec is not None for instance in known)
        found = self._super.cells.read_of(
            cell_uuid,
            [instance.uuid for instance in known],
            lambda uuids: ShowInCell(instance_uuids=uuids, with_request=with_request),
        )
        return {instance.uuid: instance for instance in found}

    def _note_deleted(self, known: Sequence[Instance], merged: dict[str, Instance]) -> None:
        deleted = [
            instance.uuid
            for instance in known
            if instance.uuid in merged and instance.state != "deleted" and merged[instance.uuid].state == "deleted"
        ]
        for part in batches(deleted, MAX_INSTANCES):
            self._super.database.write(partial(super_records.note_deleted, uuids=part))


def _merged(known: Instance, in_cell: Instance | None, cell: str) -> Instance:
    if in_cell is None:
        return msgspec.structs.replace(known, cell=cell)
    # The deletion was ordered here, and has not reached the cell yet.
    ordered = known.state in ("deleting", "deleted") and in_cell.state != "deleted"
    return msgspec.structs.replace(
        known,
        state=known.state if ordered else in_cell.state,
        # A resized instance has another flavor in its cell; one whose deletion overtook its build has none.
        flavor=in_cell.flavor if in_cell.attempts else known.flavor,
        cell=cell,
        host=in_cell.host,
        claim_id=in_cell.claim_id,
        reason=in_cell.reason,
        attempts=in_cell.attempts,
        migration_uuid=in_cell.migration_uuid,
        attached=in_cell.attached,
        request_spec=in_cell.request_spec or known.request_spec,
        updated_at=max(known.updated_at, in_cell.updated_at),
    )


def _ordered(instance: Instance, placing: tuple[str, str] | None) -> Instance:
    """Return an instance in the state of its pending move or unshelving; its cell may not know it yet."""
    if placing is None:
        return instance
    kind, operation_uuid = placing
    if kind == MOVE and instance.state in ("active", "error"):
        return msgspec.structs.replace(instance, state="moving", migration_uuid=operation_uuid)
    if kind == UNSHELVE and instance.state == "shelved":
        return msgspec.structs.replace(instance, state="unshelving", reason=None)
    return instance
