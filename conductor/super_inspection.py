"""What the super conductor shows an operator of operations and strangers: its own, and those of every cell."""

import logging

from sqlalchemy import Connection

from conductor import super_records
from conductor.cells import Cells
from conductor.operation_states import OperationStates
from moorage import errors
from moorage.bus import serves
from moorage.database import Database
from moorage.inspection import OperationState, StrangerGuest
from moorage.messages import ListOperations, ListOperationsInCell, ListStrangers, ListStrangersInCell, ShowOperation

LOG = logging.getLogger(__name__)


class SuperInspection:
    """Reads that nothing rests on. A cell that does not answer is left out, and the log says so."""

    def __init__(self, database: Database, states: OperationStates, cells: Cells) -> None:
        self._database = database
        self._states = states
        self._cells = cells

    @serves(ListOperations)
    def list_operations(self, message: ListOperations) -> list[OperationState]:
        """Answer with the operations on record, here and in the cells, the oldest first."""

        def work(connection: Connection) -> list[OperationState]:
            uuid = message.instance_uuid
            if uuid is None:
                return self._states.read(connection, ended=message.ended)
            begun = super_records.built_by(connection, uuid)
            return self._states.read(connection, ended=message.ended, subjects=[uuid], uuids=begun)

        own = self._database.read(work)
        asked = ListOperationsInCell(ended=message.ended, instance_uuid=message.instance_uuid)
        answers, _faults = self._cells.ask_all(asked)
        # Of the same age the super conductor's come first: theirs follow from them.
        return sorted([*own, *(state for answer in answers for state in answer)], key=lambda state: -state.age)

    @serves(ShowOperation)
    def show_operation(self, message: ShowOperation) -> OperationState:
        """Answer with one operation.

        :raises NotFound: there is none.
        :raises CellUnreachable: it is not known here, and not all cells answer.
        """
        found = self._database.read(lambda connection: self._states.read(connection, uuids=[message.uuid]))
        faults: list[errors.MoorageError] = []
        if not found:
            asked = ListOperationsInCell(ended=True, uuid=message.uuid)
            answers, faults = self._cells.ask_all(asked)
            found = [state for answer in answers for state in answer]
        if found:
            return found[0]
        raise faults[0] if faults else errors.NotFound(kind="operation", name=message.uuid)

    @serves(ListStrangers)
    def list_strangers(self, _message: ListStrangers) -> list[StrangerGuest]:
        """Answer with the guests that hosts have and no cell knows anything of."""
        answers, _faults = self._cells.ask_all(ListStrangersInCell())
        return [stranger for answer in answers for stranger in answer]
