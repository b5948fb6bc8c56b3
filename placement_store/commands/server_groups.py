"""The sub-commands `moorage server-group create`, `list`, `show` and `delete`."""

import argparse
from typing import Any, get_args

from cliff.lister import Lister
from cliff.show import ShowOne

from moorage import errors, ids
from moorage.cli import lists
from moorage.cli.arguments import argument, canonical_uuid
from moorage.cli.command import Record, ShownLines, Table, shown
from moorage.messages import CreateServerGroup, DeleteServerGroup, GetServerGroup, ListServerGroups, ServerGroupState
from moorage.model import GroupPolicy, ServerGroup
from placement_store.commands import argument_types
from placement_store.commands.placement_command import PlacementCommand

_COLUMNS = ("uuid", "name", "project_id", "policy", "max_server_per_host", "members")


def _described(state: ServerGroupState) -> tuple[Any, ...]:
    group = state.group
    return shown((group.uuid, state.name, state.project_id, group.policy, group.max_server_per_host))


def _shown(state: ServerGroupState) -> Record:
    lines = [f"{member} on {root or 'no host'}" for member, root in state.members.items()]
    return _COLUMNS, (*_described(state), ShownLines(state.members, lines))


class ServerGroupCreate(PlacementCommand, ShowOne):
    """Create a server group: a rule that its servers follow when they are placed.

    `affinity` keeps the servers on one host, `anti-affinity` allows at most --max of them on each host. The soft
    policies prefer such hosts and allow others. The rule of a group cannot be changed.
    """

    arguments = (
        argument("name", type=argument_types.name, help="Name of the group; it need not be unique"),
        argument("--policy", choices=get_args(GroupPolicy), required=True, help="Rule of the group"),
        argument(
            "--project", type=argument_types.name, required=True, metavar="PROJECT", help="Project that owns the group"
        ),
        argument("--uuid", type=canonical_uuid, help="Uuid of the group (default: a new one)"),
        argument(
            "--max",
            type=argument_types.members_on_host,
            metavar="N",
            help="Maximum number of its servers per host, for anti-affinity (default: 1)",
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Create the group and show it."""
        if parsed_args.max is not None and parsed_args.policy != "anti-affinity":
            raise errors.InvalidRequest(path="--max", reason="only the policy anti-affinity has a maximum")
        group = ServerGroup(
            uuid=parsed_args.uuid or ids.fresh(), policy=parsed_args.policy, max_server_per_host=parsed_args.max or 1
        )
        message = CreateServerGroup(
            request_id=ids.fresh(), group=group, name=parsed_args.name, project_id=parsed_args.project
        )
        return _shown(self.change(message))


class ServerGroupList(PlacementCommand, Lister):
    """List the server groups by name; groups that came with a build have no name."""

    only_reads = True
    arguments = (
        argument("--project", type=argument_types.name, metavar="PROJECT", help="List only groups of this project"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return one row per group, with the number of its members."""
        states = lists.server_groups(self.placement, ListServerGroups(project_id=parsed_args.project))
        return _COLUMNS, [(*_described(state), len(state.members)) for state in states]


class _ServerGroupCommand(PlacementCommand):
    arguments = (argument("group", type=canonical_uuid, help="Server group (uuid)"),)


class ServerGroupShow(_ServerGroupCommand, ShowOne):
    """Show a server group with its members and their compute nodes; for a moving member, the destination."""

    only_reads = True

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Show the group."""
        return _shown(self.placement.call(GetServerGroup(uuid=parsed_args.group)))


class ServerGroupDelete(_ServerGroupCommand):
    """Delete a server group. It is refused while the group has members, including shelved ones."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete the group."""
        self.change(DeleteServerGroup(request_id=ids.fresh(), uuid=parsed_args.group))
