"""Serve the orders to build and to delete instances: record an operation, and leave it to the worker."""

from sqlalchemy import Connection

from conductor.engine.operations import Operations
from conductor.engine.steps import BUILD, NewOperation, Operation
from conductor.engine.worker import Worker
from conductor.super.records import instances as super_records
from conductor.super.steps.build import SuperBuilds
from conductor.super.steps.delete import SuperDeletes
from moorage import context, errors, ids
from moorage.bus.bus import serves
from moorage.messages import BuildInstances, DeleteInstance, Done
from moorage.service.stored_requests import StoredRequests


class SuperOrders:
    """Takes orders to build and to delete instances; each is answered as soon as it is on record."""

    def __init__(
        self,
        requests: StoredRequests,
        operations: Operations,
        worker: Worker,
        builds: SuperBuilds,
        deletes: SuperDeletes,
    ) -> None:
        self._builds = builds
        self._requests = requests
        self._operations = operations
        self._worker = worker
        self._deletes = deletes

    @serves(BuildInstances)
    def build_instances(self, message: BuildInstances) -> list[str]:
        """Record instances and the operation that builds them.

        :raises InvalidRequest: an instance is named twice, or the build needs more hosts than one answer can name.
        """
        uuids = message.instance_uuids
        if len(set(uuids)) != len(uuids):
            raise errors.InvalidRequest(path="$.instance_uuids", reason="an instance is named twice")
        request_id = context.current().request_id or message.request_id
        new = NewOperation(
            uuid=ids.derived(message.request_id, "build"),
            kind=BUILD,
            subject=message.request_id,
            step="select",
            payload=self._builds.first_step(uuids),
        )
        begun: list[Operation] = []

        def work(connection: Connection) -> list[str]:
            super_records.add(connection, uuids, message.request_spec, new.uuid, message.request_id)
            begun[:] = self._operations.begin(connection, [new], request_id)
            return list(uuids)

        answer = self._requests.once(message, work)
        if not answer.replayed:
            self._worker.take_up(*begun)
        return answer.result

    @serves(DeleteInstance)
    def delete_instance(self, message: DeleteInstance) -> Done:
        """Record the operation that deletes an instance."""
        begun: list[Operation] = []

        def work(connection: Connection) -> Done:
            begun[:] = self._deletes.order(connection, self._operations, message)
            return Done()

        answer = self._requests.once(message, work)
        if not answer.replayed:
            self._worker.take_up(*begun)
        return answer.result
