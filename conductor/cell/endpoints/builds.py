"""The endpoint for orders to build, to delete and to show instances.

An order is answered as soon as its operation is recorded; the worker carries it out.
"""

import logging
from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Connection

from conductor.cell.attempt_sequence import first_step
from conductor.cell.context import CellPart
from conductor.cell.records.instances import NewInstance
from conductor.cell.steps.delete import CellDeletes
from conductor.cell.steps.start import StartOrder, start_id
from conductor.engine.order_requests import OrderPlan, SharedOrder
from conductor.engine.steps import BUILD, Operation
from moorage import errors, ids
from moorage.batches import BatchItem
from moorage.bus.bus import serves, serves_many
from moorage.messages import BuildInCell, DeleteInCell, Done, InstanceBuild, ShowInCell
from moorage.model import Instance

LOG = logging.getLogger(__name__)


class CellOrders(CellPart):
    """Serves `build_instances`, `delete_instance` and `list_instances`."""

    @serves(BuildInCell)
    def build_instances(self, message: BuildInCell) -> Done:
        """Record instances with their first attempts and the operations that build them; ignore known instances.

        :raises InvalidRequest: the first selection of an instance is not claimed.
        """
        return self._cell.requests.once_together(message, self._plan(message))

    @serves_many(BuildInCell)
    def build_many(self, calls: Sequence[BatchItem[BuildInCell, Done]]) -> list[Callable[[], Done] | None]:
        """Carry out orders that came in one message, each as in :meth:`build_instances`."""
        return self._cell.requests.many_together(calls, self._plan)

    def _plan(self, message: BuildInCell) -> OrderPlan:
        """Check an order to build, and return how it is recorded."""
        for position, build in enumerate(message.builds):
            if build.selections[0].claim_id is None:
                raise errors.InvalidRequest(path=f"$.builds[{position}].selections[0]", reason="it is not claimed")
        return OrderPlan(Done(), len(message.builds), self._record)

    def _record(self, connection: Connection, orders: Sequence[SharedOrder]) -> list[list[Operation]]:
        """Record the instances of orders to build, and for each of them the operation that builds it."""
        builds: list[tuple[SharedOrder, InstanceBuild]] = [
            (order, build) for order in orders for build in order.message.builds
        ]
        # If the order to delete an instance came first, the instance is on record already, and stays unchanged.
        known = self._cell.records.known(connection, [build.instance_uuid for _order, build in builds])
        if known:
            LOG.info("Not built again, because they are recorded already: %s", ", ".join(sorted(known)))
        new = {
            ids.derived(order.message.request_id, "build", build.instance_uuid): (order, build)
            for order, build in builds
            if build.instance_uuid not in known
        }
        claims = [claim for _order, build in new.values() if (claim := build.selections[0].claim_id) is not None]
        revoked = self._cell.revoked_claims.among(connection, claims)
        instances = [NewInstance(_first_attempt(uuid), build, order.origin) for uuid, (order, build) in new.items()]
        returning = self._cell.records.add(connection, instances)
        operations = [_operation(order.origin, uuid, build, revoked, returning) for uuid, (order, build) in new.items()]
        begun = {each.uuid: each for each in self._cell.operations.begin(connection, operations)}
        return [[begun[uuid] for uuid, (of, _build) in new.items() if of is order] for order in orders]

    @serves(DeleteInCell)
    def delete_instance(self, message: DeleteInCell) -> Done:
        """Begin to delete an instance; the order to build it may not have arrived yet."""

        def work(connection: Connection, begun: list[Operation]) -> Done:
            begun += CellDeletes(self._cell).order(connection, message)
            return Done()

        return self._cell.requests.once(message, work)

    @serves(ShowInCell)
    def list_instances(self, message: ShowInCell) -> list[Instance]:
        """Return the named instances, without those that are unknown here."""
        return self._cell.database.read_one_moment(
            lambda connection: self._cell.records.show(
                connection, message.instance_uuids, with_request=message.with_request
            )
        )


def _operation(
    request_id: str, uuid: str, build: InstanceBuild, revoked: Collection[str], returning: Collection[str]
) -> Operation:
    """Return the operation that builds a new instance; it carries the order to start for its first step."""
    first = build.selections[0]
    step, payload = first_step(1, first.claim_id in revoked)
    carried = None
    if step == "start" and first.claim_id is not None and first.service_host not in returning:
        carried = StartOrder.of(
            first,
            request_id=start_id(uuid, 1),
            instance_uuid=build.instance_uuid,
            attempt_id=_first_attempt(uuid),
            claim_id=first.claim_id,
            request_spec=build.request_spec,
        )
    return Operation.new(request_id, uuid, BUILD, build.instance_uuid, step, payload, carried)


def _first_attempt(operation_uuid: str) -> str:
    return ids.derived(operation_uuid, "attempt", 1)
