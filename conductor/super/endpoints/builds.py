"""Serve the orders to build and to delete instances: record an operation, and leave it to the worker."""

from sqlalchemy import Connection

from conductor.engine.order_requests import origin
from conductor.engine.steps import BUILD, NewOperation, Operation
from conductor.super.context import SuperPart
from conductor.super.records import instances as super_records
from conductor.super.steps.build import SuperBuilds
from conductor.super.steps.delete import SuperDeletes
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import BuildInstances, DeleteInstance, Done


class SuperOrders(SuperPart):
    """Takes orders to build and to delete instances; each is answered as soon as it is on record."""

    @serves(BuildInstances)
    def build_instances(self, message: BuildInstances) -> list[str]:
        """Record instances and the operation that builds them.

        :raises InvalidRequest: an instance is named twice, or the build needs more hosts than one answer can name.
        """
        uuids = message.instance_uuids
        if len(set(uuids)) != len(uuids):
            raise errors.InvalidRequest(path="$.instance_uuids", reason="an instance is named twice")
        payload = SuperBuilds(self._super).first_step(uuids)
        spec, answer = message.request_spec, list(uuids)
        new = NewOperation(ids.derived(message.request_id, "build"), BUILD, message.request_id, "select", payload, spec)

        def work(connection: Connection, begun: list[Operation]) -> list[str]:
            super_records.add(connection, uuids, spec, new.uuid, message.request_id)
            begun += self._super.operations.begin(connection, [new], origin(message))
            return answer

        return self._super.requests.once(message, work, answer)

    @serves(DeleteInstance)
    def delete_instance(self, message: DeleteInstance) -> Done:
        """Record the operation that deletes an instance."""

        def work(connection: Connection, begun: list[Operation]) -> Done:
            begun += SuperDeletes(self._super).order(connection, message)
            return Done()

        return self._super.requests.once(message, work)
