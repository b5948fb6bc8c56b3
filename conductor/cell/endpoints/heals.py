"""The endpoint for orders to heal instances: recorded here, then carried out by the worker."""

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.holds import CellHolds
from conductor.cell.payloads import HealStep
from conductor.engine.order_requests import origin
from conductor.engine.steps import HEAL, Operation
from moorage import ids
from moorage.bus.bus import serves
from moorage.messages import HealInCell, HealsBegun


class HealOrders(CellPart):
    """Serves `heal_instances`."""

    @serves(HealInCell)
    def heal_instances(self, message: HealInCell) -> HealsBegun:
        """Begin to heal instances; refuse instances without a record here, or with a pending operation."""

        def work(connection: Connection, begun: list[Operation]) -> HealsBegun:
            refused: dict[str, str] = {}
            new: dict[str, Operation] = {}
            for uuid in sorted(message.instances):
                instance = self._cell.records.lock(connection, uuid)
                if instance is None:
                    refused[uuid] = f"this cell has no record of instance {uuid}"
                elif not CellHolds(self._cell).of(connection, [instance])[0].settled:
                    refused[uuid] = f"instance {uuid} is {instance.state}, and an operation on it may be under way"
                else:
                    heal_uuid = ids.derived(message.request_id, HEAL, uuid)
                    payload = HealStep(seen=message.instances[uuid])
                    new[uuid] = Operation.new(origin(message), heal_uuid, HEAL, uuid, "heal", payload)
            begun += self._cell.operations.begin(connection, list(new.values()))
            return HealsBegun(operations={uuid: each.uuid for uuid, each in new.items()}, refused=refused)

        return self._cell.requests.once(message, work)
