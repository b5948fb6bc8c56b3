"""Serve the orders to build and to delete instances: record an operation, and leave it to the worker."""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from conductor.engine.order_requests import OrderPlan, SharedOrder
from conductor.engine.steps import BUILD, Operation
from conductor.super.context import SuperPart
from conductor.super.records import instances as super_records
from conductor.super.records.instances import NewInstances
from conductor.super.steps.build import SelectStep
from conductor.super.steps.delete import SuperDeletes
from moorage import errors, ids
from moorage.batches import BatchItem
from moorage.bus.bus import serves, serves_many
from moorage.messages import MAX_SELECTIONS, BuildInstances, DeleteInstance, Done
from moorage.messages.basis import check_spec


class SuperOrders(SuperPart):
    """Takes orders to build and to delete instances; each is answered as soon as it is on record."""

    @serves(BuildInstances)
    def build_instances(self, message: BuildInstances) -> list[str]:
        """Record instances and the operation that builds them.

        :raises InvalidRequest: an instance is named twice, a name is missing or is a uuid, the request spec is too
            large, or the build needs more hosts than one answer can name.
        """
        return self._super.requests.once_together(message, self._plan(message))

    @serves_many(BuildInstances)
    def build_many(self, calls: Sequence[BatchItem[BuildInstances, list[str]]]) -> list[Callable[[], list[str]] | None]:
        """Carry out orders that came in one message, each as in :meth:`build_instances`."""
        return self._super.requests.many_together(calls, self._plan)

    def _plan(self, message: BuildInstances) -> OrderPlan:
        """Check an order to build, and return how it is recorded."""
        uuids = message.instance_uuids
        if len(set(uuids)) != len(uuids):
            raise errors.InvalidRequest(path="$.instance_uuids", reason="an instance is named twice")
        _check_names(message)
        check_spec(message.request_spec, "$.request_spec", len(uuids))
        try:
            _check_size(message, self._super.options.max_attempts)
        except errors.InvalidRequest:
            # The option may have been raised since the order was recorded: then it is answered again.
            if self._super.database.read(lambda connection: self._super.stored.find(connection, message)) is None:
                raise
        return OrderPlan(list(uuids), len(uuids), self._record)

    def _record(self, connection: Connection, orders: Sequence[SharedOrder]) -> list[list[Operation]]:
        """Record the instances of orders to build, and for each order the operation that builds them."""
        instances, operations = [], []
        for order in orders:
            message: BuildInstances = order.message
            uuids, spec, request_id = message.instance_uuids, message.request_spec, message.request_id
            payload = SelectStep(number=1, instance_uuids=uuids, num_alternates=self._super.options.max_attempts - 1)
            uuid = ids.derived(request_id, "build")
            instances.append(NewInstances(uuids, spec, uuid, request_id, message.names))
            operations.append(Operation.new(order.origin, uuid, BUILD, request_id, "select", payload, spec))
        super_records.add(connection, instances)
        return [[begun] for begun in self._super.operations.begin(connection, operations)]

    @serves(DeleteInstance)
    def delete_instance(self, message: DeleteInstance) -> Done:
        """Record the operation that deletes an instance."""

        def work(connection: Connection, begun: list[Operation]) -> Done:
            begun += SuperDeletes(self._super).order(connection, message)
            return Done()

        return self._super.requests.once(message, work)


def _check_names(message: BuildInstances) -> None:
    if message.names and len(message.names) != len(message.instance_uuids):
        given, wanted = len(message.names), len(message.instance_uuids)
        raise errors.InvalidRequest(path="$.names", reason=f"there are {given} names for {wanted} instances")
    for name in message.names:
        # A command accepts a name or a uuid, so a name must not look like a uuid.
        if ids.canonical(name):
            raise errors.InvalidRequest(path="$.names", reason=f"{name} is a uuid, and no name")


def _check_size(message: BuildInstances, attempts: int) -> None:
    """Refuse a build whose instances and their alternates need more hosts than one answer can name.

    :raises InvalidRequest: it needs more.
    """
    instances = len(message.instance_uuids)
    hosts = instances * attempts
    if hosts > MAX_SELECTIONS:
        raise errors.InvalidRequest(
            path="$.instance_uuids",
            reason=f"{instances} instances with {attempts} attempts each ([conductor] max_attempts) need "
            f"{hosts} hosts, and one request may need {MAX_SELECTIONS}: order at most "
            f"{MAX_SELECTIONS // attempts} instances at once",
        )
