"""The endpoint for orders to attach and detach resource groups: recorded here, then carried out by the worker."""

from sqlalchemy import Connection

from conductor.cell.attached_groups import with_group
from conductor.cell.context import CellPart
from conductor.cell.payloads import ChooseStep
from conductor.cell.records import order_numbers
from conductor.cell.records.instances import CellInstance
from conductor.engine.preconditions import require_settled
from conductor.engine.steps import ATTACH, DETACH, Operation
from moorage import errors
from moorage.bus.bus import serves
from moorage.messages import AttachResourceInCell, DetachResourceInCell, OperationBegun
from moorage.messages.basis import NumberedOrder, check_spec
from moorage.model import ResourceGroup
from moorage.model.states import InstanceState

#: The most groups of a request, as in :class:`moorage.model.RequestSpec`.
_MOST_GROUPS = 64


class ResourceOrders(CellPart):
    """Serves `attach_resource` and `detach_resource`; both raise ``InstanceNotFound`` for an unknown instance."""

    @serves(AttachResourceInCell)
    def attach_resource(self, message: AttachResourceInCell) -> OperationBegun:
        """Begin to claim a further resource group for an instance, in the tree of its host.

        :raises InvalidRequest: the group has no name, requests no resources, contradicts itself, or makes the request
            too large.
        :raises AlreadyExists: the instance's request has a group of this name.
        :raises InvalidState: it is not active on a host, or another group is being attached or detached.
        """
        _check(message.suffix, message.group)

        def work(connection: Connection, begun: list[Operation]) -> OperationBegun:
            instance = self._lock(connection, message, ("active",))
            if message.suffix in instance.spec.groups:
                raise errors.AlreadyExists(kind="resource group", name=message.suffix)
            if len(instance.spec.groups) >= _MOST_GROUPS:
                raise errors.InvalidState(reason=f"instance {instance.uuid} has {_MOST_GROUPS} resource groups already")
            check_spec(with_group(instance.spec, message.suffix, message.group), "$.group")
            attempt = self._cell.records.active_attempt(connection, instance)
            # A flavor's extra specs may add groups that the request itself does not name.
            if message.suffix in attempt.selection.allocation_request.mappings:
                raise errors.AlreadyExists(kind="resource group", name=message.suffix)
            choosing = ChooseStep(suffix=message.suffix, group=message.group, number=attempt.number)
            [operation] = self._begin(connection, message, ATTACH, "choose", choosing)
            begun.append(operation)
            return OperationBegun(operation_uuid=operation.uuid)

        return self._cell.requests.once(message, work)

    @serves(DetachResourceInCell)
    def detach_resource(self, message: DetachResourceInCell) -> OperationBegun:
        """Begin to release a resource group that was attached; for a shelved instance only the request changes.

        :raises NotFound: the instance's request has no group of this name.
        :raises InvalidState: the group was requested with the instance; or the instance is neither active nor shelved,
            or another group is being attached or detached.
        """

        def work(connection: Connection, begun: list[Operation]) -> OperationBegun:
            instance = self._lock(connection, message, ("active", "shelved"))
            group = instance.spec.groups.get(message.suffix)
            if group is None:
                raise errors.NotFound(kind="resource group", name=message.suffix)
            if message.suffix not in instance.attached:
                raise errors.InvalidState(
                    reason=f"resource group {message.suffix} was not attached to instance {instance.uuid}: "
                    "it was asked for when the instance was built"
                )
            is_shelved = instance.state == "shelved"
            number = None if is_shelved else self._cell.records.active_attempt(connection, instance).number
            reading = ChooseStep(suffix=message.suffix, group=group, number=number)
            [operation] = self._begin(connection, message, DETACH, "read", reading)
            begun.append(operation)
            return OperationBegun(operation_uuid=operation.uuid)

        return self._cell.requests.once(message, work)

    def _lock(
        self, connection: Connection, message: NumberedOrder[OperationBegun], states: tuple[InstanceState, ...]
    ) -> CellInstance:
        instance = order_numbers.lock(self._cell.records, connection, message)
        instance.require(*states)
        require_settled(connection, self._cell.operations, instance.uuid)
        return instance


def _check(suffix: str, group: ResourceGroup) -> None:
    """Refuse a group that can never be attached, or that no later request can contain.

    :raises InvalidRequest: the group is invalid; the error has the path of the fault.
    """
    both = ", ".join(sorted({*group.required} & {*group.forbidden}))
    unmet = any({*traits} <= {*group.forbidden} for traits in group.any_of)
    apart = {uuid for uuids in group.member_of for uuid in uuids if set(uuids) <= {*group.not_member_of}}
    faults = {
        "$.suffix": "" if suffix else "a group that is attached has a name",
        "$.group.resources": "" if group.resources else "the group has no resources",
        "$.group.in_tree": group.in_tree and "the tree is that of the host that the instance is on",
        "$.group.forbidden": both and f"{both} is required as well",
        "$.group.any_of": unmet and "all of these traits are forbidden",
        "$.group.not_member_of": apart and f"{', '.join(sorted(apart))} is to be belonged to as well",
    }
    for path, reason in faults.items():
        if reason:
            raise errors.InvalidRequest(path=path, reason=reason)
