"""The operator's commands to list and show operations."""

import argparse
from typing import Any

from cliff.show import ShowOne

from moorage.cli import lists
from moorage.cli.arguments import argument, canonical_uuid
from moorage.cli.command import Configured, ListCommand, Record, ShownAge, Table, shown
from moorage.messages import ListOperations, ShowOperation
from moorage.model.inspection import OperationSummary

_COLUMNS = ("uuid", "kind", "subject", "step", "state", "tries", "owner", "age", "idle", "reason")


class OperationList(ListCommand):
    """List the operations in progress of the super conductor and of all cells that answer, the oldest first.

    `age` is the time since an operation began, `idle` the time since its last change, in seconds. An operation without
    an owner waits for the report of a host, or for the next free conductor.
    """

    arguments = (
        argument("--all", action="store_true", help="List ended operations, too"),
        argument("--instance", metavar="INSTANCE", help="List only operations on this instance (name or uuid)"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Query the super conductor."""
        named = parsed_args.instance
        wanted = None if named is None else lists.instance_uuid(self.client("conductor"), named)
        message = ListOperations(ended=parsed_args.all, instance_uuid=wanted)
        most = None if parsed_args.sorted_by or parsed_args.marker is not None else parsed_args.limit
        return _COLUMNS, [_row(state) for state in lists.operations(self.client("conductor"), message, most=most)]


class OperationShow(Configured, ShowOne):
    """Show an operation: its next step, its owner with the lease, and the result of the last try."""

    only_reads = True
    arguments = (argument("uuid", type=canonical_uuid, help="Operation (uuid)"),)

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Query the super conductor."""
        state = self.client("conductor").call(ShowOperation(uuid=parsed_args.uuid))
        names = OperationSummary.__struct_fields__
        rounded = {"age", "idle", "lease_left"}
        return names, shown(
            ShownAge(getattr(state, name)) if name in rounded else getattr(state, name) for name in names
        )


def _row(state: OperationSummary) -> tuple[Any, ...]:
    times = (ShownAge(state.age), ShownAge(state.idle))
    what = (state.uuid, state.kind, state.subject, state.step, state.state, state.tries)
    return shown((*what, state.lease_owner, *times, state.reason))
