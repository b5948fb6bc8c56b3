"""The operator's commands to attach a resource group to a server, and to detach it."""

import argparse
from collections.abc import Sequence
from typing import Any, ClassVar

from conductor.commands.order import BASE_REQUEST_ID, WAIT_TIMEOUT, OrderCommand
from moorage import ids
from moorage.cli import group_options
from moorage.cli.arguments import Argument, argument
from moorage.cli.command import Table, shown
from moorage.messages import AttachResource, DetachResource, OperationBegun, ShowOperation
from moorage.messages.wire import Mutation
from moorage.model.inspection import OperationSummary

_COLUMNS = ("instance", "group", "operation", "state", "reason")


class _ResourceOrder(OrderCommand):
    """A command that sends an order for one resource group of one server, and shows its operation."""

    kind: ClassVar[type[Mutation[OperationBegun]]]

    arguments: Sequence[Argument] = (
        argument("instance", metavar="INSTANCE", help="Instance (name or uuid)"),
        argument("name", metavar="NAME", help="Name of the resource group"),
        argument("--no-wait", dest="wait", action="store_false", help="Do not wait for the end of the operation"),
        BASE_REQUEST_ID,
        WAIT_TIMEOUT,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Send the order, and wait unless `--no-wait` is given."""
        conductor = self.client("conductor")
        [uuid] = self.instance_uuids([parsed_args.instance])
        request_id = ids.derived(self.named(parsed_args), "order", uuid)
        named = {"instance_uuid": uuid, "suffix": parsed_args.name}
        ordered = self.order(self.kind(request_id=request_id, **named, **self.content(parsed_args)))

        def look(uuid: str) -> OperationSummary:
            return conductor.call(ShowOperation(uuid=uuid))

        [seen] = self.waited(parsed_args, [ordered.operation_uuid], look, ("done",), ("done", "failed"), "writing")
        return _COLUMNS, [shown((uuid, parsed_args.name, seen.uuid, seen.state, seen.reason))]

    def content(self, _given: argparse.Namespace) -> dict[str, Any]:
        """Return the further content of the order."""
        return {}


class InstanceAttachResource(_ResourceOrder):
    """Attach a resource group to an active instance: claim it from one provider of its host.

    The group becomes part of the instance's request: every later move, evacuation, resize or unshelving claims it on
    the new host, too. The command does not plug a device into the guest; this remains the task of the caller.

    Example: moorage instance attach-resource UUID _port1 --resource NET_BW_EGR_KILOBIT_PER_SEC=1000
    --required CUSTOM_PHYSNET_BLUE

    If the group cannot be attached, the command prints the reason, and the exit status is 1.
    """

    kind = AttachResource

    arguments = (lambda parser: group_options.add_group_options(parser, in_any_tree=False),)

    def content(self, given: argparse.Namespace) -> dict[str, Any]:
        """Return the group."""
        return {"group": group_options.group(given)}


class InstanceDetachResource(_ResourceOrder):
    """Detach a resource group from an instance: release what is left of its allocations.

    The instance may be shelved: it then no longer requests the group when it is unshelved.

    Example: moorage instance detach-resource UUID _port1

    If the group cannot be detached, the command prints the reason, and the exit status is 1.
    """

    kind = DetachResource
