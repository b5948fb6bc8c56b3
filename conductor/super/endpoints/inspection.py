"""Serve lists of the operations and unknown guests of the super conductor and of all cells, for operators."""

from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from conductor.engine.operation_list import list_operations
from conductor.schema import conductor_operations
from conductor.super.context import SuperPart
from conductor.super.records import instances as super_records
from moorage import errors
from moorage.bus.bus import serves
from moorage.cli import lists
from moorage.messages import ListOperations, ListOperationsInCell, ListStrangers, ListStrangersInCell, ShowOperation
from moorage.messages.basis import ListInParts
from moorage.model.inspection import OperationSummary, UnknownGuest

E = TypeVar("E")

_read = partial(list_operations, table=conductor_operations, scope={})


class SuperInspection(SuperPart):
    """Serves reads for inspection only. A cell that does not answer is left out with a warning in the log."""

    @serves(ListOperations)
    def list_operations(self, message: ListOperations) -> list[OperationSummary]:
        """Return the operations of this conductor and of the cells, the oldest first; with a limit, a page by uuid."""
        uuid, limit, after = message.instance_uuid, message.limit, message.after

        def work(connection: Connection) -> list[OperationSummary]:
            subjects = None if uuid is None else [uuid]
            uuids = None if uuid is None else super_records.built_by(connection, uuid)
            ended = message.ended
            return _read(connection, ended=ended, subjects=subjects, uuids=uuids, limit=limit, after=after)

        # Read the cells first: an age grows until it is read, so a build is always older than its part in a cell, even
        # if the cell's answer takes long.
        answers = self._part_of_all(
            ListOperationsInCell(ended=message.ended, instance_uuid=uuid, limit=limit, after=after)
        )
        own = self._super.database.read(work)
        together = [*own, *(state for answer in answers for state in answer)]
        if limit is not None:
            return lists.part_of(together, lists.operation_key, limit, after)
        return sorted(together, key=lambda state: -state.age)

    @serves(ShowOperation)
    def show_operation(self, message: ShowOperation) -> OperationSummary:
        """Return one operation.

        :raises NotFound: there is no such operation.
        :raises Unavailable: it is not on record here, and a cell, or the placement role, does not answer.
        """
        found = self._super.database.read(lambda connection: _read(connection, uuids=[message.uuid]))
        faults: list[errors.MoorageError] = []
        if not found:
            answers, faults = self._super.cells.ask_all(ListOperationsInCell(ended=True, uuid=message.uuid))
            found = [state for answer in answers for state in answer]
        if found:
            return found[0]
        raise faults[0] if faults else errors.NotFound(kind="operation", name=message.uuid)

    @serves(ListStrangers)
    def list_strangers(self, message: ListStrangers) -> list[UnknownGuest]:
        """Return the unknown guests of all cells, by host: guests without a record; with a limit, one page."""
        answers = self._part_of_all(ListStrangersInCell(limit=message.limit, after=message.after))
        together = [guest for answer in answers for guest in answer]
        return lists.part_of(together, lists.unknown_guest_key, message.limit, message.after)

    def _part_of_all(self, message: ListInParts[list[E]]) -> list[list[E]]:
        """Return the answers of the cells that answer.

        :raises ReplyTooLarge: the answer of a cell does not fit into a message; the answer to a shorter page may.
        """
        answers, faults = self._super.cells.ask_all(message)
        for fault in faults:
            # A cell of an earlier release ignores the limit and answers with its whole list: leave it out.
            if isinstance(fault, errors.ReplyTooLarge) and message.limit not in (None, 1):
                raise fault
        return answers
