"""The sub-commands `moorage server-group create`, `list`, `show` and `delete`."""

import argparse
from typing import Any, get_args

from cliff.command import Command
from cliff.lister import Lister
from cliff.show import ShowOne

from moorage import ids
from moorage.cli import lists
from moorage.cli.command import Record, ShownLines, Table, argument, shown
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
    """Create a server group: a rule for the hosts of the servers that name it.

    `affinity` keeps them on one host; `anti-affinity` allows at most --max of them on each host. The soft policies only
    prefer that. The rule of a group never changes.
    """

    arguments = (
        argument("name", type=argument_types.name, help="its name, which need not be unique"),
        argument("--policy", choices=get_args(GroupPolicy), required=True, help="its rule"),
        argument(
            "--project", type=argument_types.name, required=True, metavar="PROJECT", help="the project that owns it"
        ),
        argument("--uuid", type=argument_types.uuid, help="its uuid; default: a new one"),
        argument(
            "--max",
            type=argument_types.members_on_host,
            default=1,
            metavar="N",
            help="the most members on one host; default: 1",
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Create the group and show it."""
        group = ServerGroup(
            uuid=parsed_args.uuid or ids.fresh(), policy=parsed_args.policy, max_server_per_host=parsed_args.max
        )
        message = CreateServerGroup(
            request_id=ids.fresh(), group=group, name=parsed_args.name, project_id=parsed_args.project
        )
        return _shown(self.change(message))


class ServerGroupList(PlacementCommand, Lister):
    """List the server groups by name; those that a build has created have none."""

    arguments = (
        argument("--project", type=argument_types.name, metavar="PROJECT", help="only groups of this project"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return one row per group, with the number of its members."""
        states = lists.server_groups(self.placement, ListServerGroups(project_id=parsed_args.project))
        return _COLUMNS, [(*_described(state), len(state.members)) for state in states]


class _ServerGroupCommand(PlacementCommand):
    arguments = (argument("group", type=argument_types.uuid, help="the group, by uuid"),)


class ServerGroupShow(_ServerGroupCommand, ShowOne):
    """Show a server group with its members and their compute nodes; for one that is being moved, the destination."""

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Show the group."""
        return _shown(self.placement.call(GetServerGroup(uuid=parsed_args.group)))


class ServerGroupDelete(_ServerGroupCommand, Command):
    """Delete a server group. It is refused while it has members, shelved ones included."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete the group."""
        self.change(DeleteServerGroup(request_id=ids.fresh(), uuid=parsed_args.group))
