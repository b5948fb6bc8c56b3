"""Serve the orders to move and to unshelve instances: check what can be checked at once, then record an operation."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from conductor.engine.operations import Operations
from conductor.engine.order_requests import Work, origin
from conductor.engine.preconditions import advice, cannot_move, not_forced_down, require_none_pending
from conductor.engine.steps import MOVE, UNSHELVE, Operation
from conductor.super.context import SuperPart
from conductor.super.endpoints.instances import SuperView
from conductor.super.records import instances as super_records
from conductor.super.records import migrations as super_migrations
from conductor.super.steps.move import PrepareMoveStep
from conductor.super.steps.unshelve import PrepareUnshelveStep
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    Done,
    EvacuateInstance,
    ListHosts,
    LiveMigrateInstance,
    MigrateInstance,
    Ordered,
    ResizeInstance,
    UnshelveInstance,
)
from moorage.messages.basis import OrderAfter, check_spec
from moorage.messages.conductor import OrderToMove
from moorage.messages.wire import Mutation
from moorage.model import Flavor, HostState, Instance, MoveKind

R = TypeVar("R")


class SuperMoveOrders(SuperPart):
    """Takes orders that need a decision of the scheduler; each is answered as soon as it is on record."""

    @serves(MigrateInstance)
    def migrate_instance(self, message: MigrateInstance) -> Ordered:
        """Record a cold migration."""
        return self._move(message, "cold-migration")

    @serves(ResizeInstance)
    def resize_instance(self, message: ResizeInstance) -> Ordered:
        """Record a resize.

        :raises InvalidRequest: the flavor is too large to be stored.
        """
        check_spec(message.flavor, "$.flavor")
        return self._move(message, "resize", message.flavor)

    @serves(LiveMigrateInstance)
    def live_migrate_instance(self, message: LiveMigrateInstance) -> Ordered:
        """Record a live migration."""
        return self._move(message, "live-migration")

    @serves(EvacuateInstance)
    def evacuate_instance(self, message: EvacuateInstance) -> Ordered:
        """Record an evacuation."""
        return self._move(message, "evacuation")

    @serves(UnshelveInstance)
    def unshelve_instance(self, message: UnshelveInstance) -> Done:
        """Record the unshelving of an instance."""
        return self._once(message, lambda: self._plan_unshelve(message))

    def _plan_unshelve(self, message: UnshelveInstance) -> Work[Done]:
        """Check an order to unshelve, and return its transaction."""
        instance = SuperView(self._super).read_current(message.instance_uuid)
        # If an instance is in state unshelving and has no host, an earlier unshelving was interrupted: allow it again.
        states = ("shelved",) if instance.host is not None else ("shelved", "unshelving")
        if instance.state not in states:
            reason = f"instance {instance.uuid} is {instance.state}; to be unshelved it must be {' or '.join(states)}"
            raise errors.InvalidState(reason=reason + advice(instance.state, instance.migration_uuid))
        cell_uuid = _free_in_cell(instance)
        self._check_target(message.host, cell_uuid)

        def work(connection: Connection, begun: list[Operation]) -> Done:
            number = self._number(connection, message)
            preparing = PrepareUnshelveStep(cell_uuid=cell_uuid, host=message.host, order_number=number)
            # Clear the explanation of the last failure.
            super_records.explain(connection, instance.uuid, None)
            uuid = ids.derived(message.request_id, "unshelve")
            new = Operation.new(origin(message), uuid, UNSHELVE, instance.uuid, "prepare", preparing)
            begun += self._super.operations.begin(connection, [new])
            return Done()

        return work

    def _move(self, message: OrderToMove, kind: MoveKind, flavor: Flavor | None = None) -> Ordered:
        return self._once(message, lambda: self._plan_move(message, kind, flavor))

    def _plan_move(self, message: OrderToMove, kind: MoveKind, flavor: Flavor | None) -> Work[Ordered]:
        """Check an order to move, and return its transaction."""
        instance = SuperView(self._super).read_current(message.instance_uuid)
        evacuated = kind == "evacuation"
        # Its cell checks again.
        if instance.state != "active" and not (evacuated and instance.state == "error"):
            raise cannot_move(instance.uuid, instance.state, kind, instance.migration_uuid)
        cell_uuid = _free_in_cell(instance)
        if instance.host is None:
            raise errors.InvalidState(reason=f"instance {instance.uuid} is on no host")
        if evacuated:
            self._require_down(instance.host, cell_uuid)
        self._check_target(message.host, cell_uuid, leaving=None if kind == "resize" else instance.host)
        migration_uuid = ids.derived(message.request_id, "migration")

        def work(connection: Connection, begun: list[Operation]) -> Ordered:
            preparing = PrepareMoveStep(
                kind=kind,
                cell_uuid=cell_uuid,
                host=message.host,
                flavor=flavor,
                drop_extras=message.drop_extras,
                order_number=self._number(connection, message),
            )
            super_migrations.add(
                connection,
                migration_uuid,
                instance_uuid=instance.uuid,
                cell_uuid=cell_uuid,
                kind=kind,
                request_id=message.request_id,
            )
            new = Operation.new(origin(message), migration_uuid, MOVE, instance.uuid, "prepare", preparing)
            begun += self._super.operations.begin(connection, [new])
            return Ordered(migration_uuid=migration_uuid)

        return work

    def _once(self, message: Mutation[R], plan: Callable[[], Work[R]]) -> R:
        """Check an order and carry it out, or return the stored answer of a repeated one.

        :param plan: refuses the order if it is not possible now, and returns its transaction.
        """
        # First: the recorded order may have changed the state, so that the check would refuse a repeated order.
        answered = self._super.database.read(lambda connection: self._super.stored.find(connection, message))
        if answered is not None:
            return answered.result
        try:
            work = plan()
        except errors.MoorageError as refusal:
            return self._super.requests.refused(message, refusal)
        return self._super.requests.once(message, work)

    # The scheduler's decision finds later changes of the hosts.
    def _check_target(self, host: str | None, cell_uuid: str, *, leaving: str | None = None) -> None:
        """Refuse a target host that an instance of this cell cannot go to; null leaves the choice to the scheduler.

        :param leaving: the host that the instance must leave, which cannot be the target.
        :raises InvalidState: the host is in another cell, is the host to leave, is down or is disabled.
        """
        if host is None:
            return
        nodes = self._nodes(host, cell_uuid)
        if host == leaving:
            raise errors.InvalidState(reason=f"the instance is on host {host} already")
        if all(node.forced_down or not node.up for node in nodes):
            raise errors.InvalidState(reason=f"host {host} is down")
        if all(node.disabled for node in nodes):
            why = f": {nodes[0].disabled_reason}" if nodes[0].disabled_reason else ""
            raise errors.InvalidState(reason=f"host {host} is disabled{why}")

    def _require_down(self, host: str, cell_uuid: str) -> None:
        """Refuse an evacuation from a host that no operator has forced down.

        A host without a record cannot be marked: its cell checks whether it is silent.

        :raises InvalidState: the host is not forced down.
        """
        found = self._super.scheduler_client.call(ListHosts(service_host=host))
        if not all(node.forced_down for node in found if node.cell_uuid == cell_uuid):
            raise not_forced_down(host)

    def _nodes(self, host: str, cell_uuid: str) -> list[HostState]:
        """Return the nodes of a host of this cell.

        :raises HostNotFound: there is no such host.
        :raises Unavailable: no scheduler answers.
        """
        found = self._super.scheduler_client.call(ListHosts(service_host=host))
        if not found:
            raise errors.HostNotFound(name=host)
        nodes = [node for node in found if node.cell_uuid == cell_uuid]
        if not nodes:
            raise errors.InvalidState(reason=f"host {host} is in another cell than the instance")
        return nodes

    def _number(self, connection: Connection, message: OrderAfter[R]) -> int:
        require_free(connection, self._super.operations, message.instance_uuid)
        return super_records.number_order(connection, message.instance_uuid, message.last_order)


def require_free(connection: Connection, operations: Operations, uuid: str) -> None:
    """Lock an instance, and refuse the order if another operation on it is pending here.

    :raises InstanceNotFound: there is no such instance.
    :raises InvalidState: the instance is being moved, unshelved or deleted, or is deleted.
    """
    row = super_records.lock_known(connection, uuid)
    if row.state in ("deleting", "deleted"):
        raise errors.InvalidState(reason=f"instance {uuid} is {row.state}")
    require_none_pending(connection, operations, uuid, MOVE, UNSHELVE)


def _free_in_cell(instance: Instance) -> str:
    """Return the cell of an instance, and refuse the order if its last migration has not ended."""
    if instance.migration_uuid is not None:
        raise errors.InvalidState(
            reason=f"migration {instance.migration_uuid} of instance {instance.uuid} has not ended"
        )
    if instance.cell_uuid is None:
        raise errors.InvalidState(reason=f"instance {instance.uuid} is in no cell")
    return instance.cell_uuid
