"""The orders that a cell conductor takes from the super conductor: written down, then done by the worker."""

import logging
from collections.abc import Collection

from sqlalchemy import Connection

from conductor.cell.payloads import Releasing, Starting
from conductor.cell.records.instances import CellRecords, NewInstance
from conductor.cell.requests import CellRequests, origin
from conductor.cell.steps.delete import CellDeletes
from conductor.engine.operations import Operations
from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.steps import BUILD, NewOperation, Operation
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import BuildInCell, DeleteInCell, Done, InstanceBuild, ShowInCell
from moorage.model import Instance, Value

LOG = logging.getLogger(__name__)


class CellOrders:
    """What topic `conductor.<cell uuid>` is ordered to do: answered as soon as it is on record; and asked to show."""

    def __init__(
        self,
        database: Database,
        requests: CellRequests,
        records: CellRecords,
        operations: Operations,
        deletes: CellDeletes,
        revoked_claims: RevokedClaims,
    ) -> None:
        self._revoked_claims = revoked_claims
        self._database = database
        self._requests = requests
        self._records = records
        self._operations = operations
        self._deletes = deletes

    @serves(BuildInCell)
    def build_instances(self, message: BuildInCell) -> Done:
        """Record instances with their first attempts, and the operations that build them."""
        for position, build in enumerate(message.builds):
            if build.selections[0].claim_id is None:
                raise errors.InvalidRequest(path=f"$.builds[{position}].selections[0]", reason="it is not claimed")

        def work(connection: Connection, begun: list[Operation]) -> Done:
            # Where the order to delete it came first, the instance is on record already and stays as it is.
            known = self._records.known(connection, [build.instance_uuid for build in message.builds])
            if known:
                LOG.info("Not built again, for they are on record: %s", ", ".join(sorted(known)))
            new = [build for build in message.builds if build.instance_uuid not in known]
            claims = [claim for build in new if (claim := build.selections[0].claim_id) is not None]
            revoked = self._revoked_claims.among(connection, claims)
            begun += self._begin(connection, message.request_id, origin(message), new, revoked)
            return Done()

        return self._requests.once(message, work)

    def _begin(
        self,
        connection: Connection,
        parent: str,
        request_id: str,
        builds: list[InstanceBuild],
        revoked: Collection[str | None],
    ) -> list[Operation]:
        operations = [_build(parent, build, build.selections[0].claim_id in revoked) for build in builds]
        if builds:
            instances = [
                NewInstance(build, ids.derived(operation.uuid, "attempt", 1))
                for build, operation in zip(builds, operations, strict=True)
            ]
            self._records.add(connection, instances, request_id)
        return self._operations.begin(connection, operations, request_id)

    @serves(DeleteInCell)
    def delete_instance(self, message: DeleteInCell) -> Done:
        """Record the operation that deletes an instance."""

        def work(connection: Connection, begun: list[Operation]) -> Done:
            begun += self._deletes.order(connection, message)
            return Done()

        return self._requests.once(message, work)

    @serves(ShowInCell)
    def list_instances(self, message: ShowInCell) -> list[Instance]:
        """Answer with those of the named instances that the cell knows."""
        return self._database.read_one_moment(
            lambda connection: self._records.show(connection, message.instance_uuids, with_request=message.with_request)
        )


def first_step(number: int, is_revoked: bool, claim_id: str | None = None) -> tuple[str, Value]:
    """Return what is done first with a claimed host: it is tried, unless its claim was given up before it arrived."""
    if not is_revoked:
        return "start", Starting(number=number)
    why = "its claim had been given up before it arrived"
    return "release", Releasing(failed=None, fate="unknown", reason=why, claim_id=claim_id)


def _build(parent: str, build: InstanceBuild, is_revoked: bool) -> NewOperation:
    """Return the operation that builds an instance, or, where its claim was given up before, ends it in error."""
    step, payload = first_step(1, is_revoked)
    return NewOperation(
        uuid=ids.derived(parent, "build", build.instance_uuid),
        kind=BUILD,
        subject=build.instance_uuid,
        step=step,
        payload=payload,
    )
