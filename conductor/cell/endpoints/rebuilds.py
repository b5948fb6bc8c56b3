"""The endpoint for orders to rebuild instances: recorded here, then carried out by the worker."""

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.payloads import RebuildStep
from conductor.cell.records import order_numbers
from conductor.engine.preconditions import require_settled
from conductor.engine.steps import REBUILD, Operation
from moorage import errors
from moorage.bus.bus import serves
from moorage.messages import Done, RebuildInCell


class RebuildOrders(CellPart):
    """Serves `rebuild_instance`."""

    @serves(RebuildInCell)
    def rebuild_instance(self, message: RebuildInCell) -> Done:
        """Begin to replace an instance's guest; an instance in error can be rebuilt too, if it is on a host.

        :raises InstanceNotFound: this cell has no record of the instance.
        :raises InvalidState: the instance cannot be rebuilt in its state.
        """

        def work(connection: Connection, begun: list[Operation]) -> Done:
            instance = order_numbers.lock(self._cell.records, connection, message)
            instance.require("active", "error")
            if instance.claim_id is None:
                raise errors.InvalidState(reason=f"instance {instance.uuid} is {instance.state} and on no host")
            require_settled(connection, self._cell.operations, instance.uuid)
            self._cell.records.change(connection, instance.uuid, state="rebuilding", reason=None)
            order_numbers.next_guest_order(self._cell.records, connection, instance)
            begun += self._begin(connection, message, REBUILD, "rebuild", RebuildStep(image=message.image))
            return Done()

        return self._cell.requests.once(message, work)
