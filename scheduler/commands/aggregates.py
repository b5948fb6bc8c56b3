"""The sub-commands `moorage aggregate create`, `set`, `add-host`, `remove-host`, `list`, `show`, `delete`, `sync`."""

import argparse
from collections.abc import Sequence
from typing import Any

from cliff.lister import Lister
from cliff.show import ShowOne

from moorage import errors, ids
from moorage.cli import lists
from moorage.cli.arguments import Argument, argument, canonical_uuid, converted, keyed
from moorage.cli.command import Record, ShownLines, Table, shown
from moorage.messages import (
    AddAggregateHost,
    CreateHostAggregate,
    DeleteHostAggregate,
    GetHostAggregate,
    ListHostAggregates,
    RemoveAggregateHost,
    SetHostAggregate,
    SyncHostAggregates,
)
from moorage.model import ZONE_KEY, HostAggregate, Text
from placement_store.commands import argument_types
from scheduler.commands.hosts import WithCells

_COLUMNS = ("uuid", "name", "zone", "metadata", "hosts")


def _add_metadata(parser: argparse.ArgumentParser) -> None:
    keyed("--metadata", type=_pair, metavar="KEY=VALUE", help="Metadata of the aggregate")(parser)
    parser.add_argument(
        "--zone",
        type=argument_types.name,
        help=f"Availability zone of its hosts, the same as --metadata {ZONE_KEY}=ZONE",
    )


class _AggregateCommand(WithCells):
    def shown(self, aggregate: HostAggregate) -> Record:
        """Return the columns and the values of an aggregate, its hosts with the names of their cells."""
        names = self.cell_names() if aggregate.hosts else {}
        pairs = sorted((host.service_host, names.get(host.cell_uuid, host.cell_uuid)) for host in aggregate.hosts)
        hosts = [{"host": host, "cell": cell} for host, cell in pairs]
        lines = [f"{host['host']} in {host['cell']}" for host in hosts]
        return _COLUMNS, (*_values(aggregate), ShownLines(hosts, lines))

    def shown_now(self, reference: str) -> Record:
        """Read an aggregate by its name or uuid, and return its columns and values.

        :raises HostAggregateNotFound: the aggregate does not exist.
        """
        return self.shown(self.client("scheduler").call(GetHostAggregate(aggregate=reference)))


class _NamedAggregateCommand(_AggregateCommand):
    """A command about one host aggregate."""

    arguments: Sequence[Argument] = (
        argument("aggregate", type=argument_types.name, metavar="AGGREGATE", help="Host aggregate (name or uuid)"),
    )


class _AggregateHostCommand(_NamedAggregateCommand, ShowOne):
    """A command that changes whether a host is in an aggregate."""

    change: type[AddAggregateHost | RemoveAggregateHost]

    arguments = (
        argument("host", type=argument_types.name, metavar="HOST", help="Host (name)"),
        argument("--cell", metavar="NAME", help="Cell of the host, if several cells have a host of this name"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Change the aggregate and show it; the errors are those of the message."""
        message = self.change(
            request_id=ids.fresh(),
            aggregate=parsed_args.aggregate,
            service_host=parsed_args.host,
            cell_uuid=self.cell_uuid(parsed_args.cell),
        )
        self.client("scheduler").call(message)
        return self.shown_now(parsed_args.aggregate)


class AggregateCreate(_AggregateCommand, ShowOne):
    """Create a host aggregate: a named set of hosts, with metadata for filters and weighers to read.

    It is also an aggregate of resource providers, which `member_of` of a request can name.
    """

    arguments = (
        argument("name", type=argument_types.name, help="Name of the aggregate; it must be unique"),
        argument(
            "--uuid",
            type=canonical_uuid,
            help="Uuid of the aggregate; it may be that of an existing aggregate of resource providers (default: a new "
            "one)",
        ),
        _add_metadata,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Create the aggregate and show it."""
        message = CreateHostAggregate(
            request_id=ids.fresh(), name=parsed_args.name, uuid=parsed_args.uuid, metadata=_metadata(parsed_args)
        )
        return self.shown(self.client("scheduler").call(message))


class AggregateSet(_NamedAggregateCommand, ShowOne):
    """Change the name or the metadata of a host aggregate; everything else remains unchanged.

    It is refused if servers are on a host whose availability zone would change, or if a host would be in two zones.
    """

    arguments = (
        argument("--name", type=argument_types.name, help="New name of the aggregate"),
        argument("--unset", type=argument_types.name, repeated=True, metavar="KEY", help="Metadata key to remove"),
        _add_metadata,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Change the aggregate and show it."""
        message = SetHostAggregate(
            request_id=ids.fresh(),
            aggregate=parsed_args.aggregate,
            name=parsed_args.name,
            metadata=_changes(parsed_args),
        )
        self.client("scheduler").call(message)
        return self.shown_now(parsed_args.name or parsed_args.aggregate)


class AggregateAddHost(_AggregateHostCommand):
    """Add a host with all its nodes to a host aggregate; it may be a member already.

    It is refused if another aggregate gives the host another availability zone, or if servers are on the host and its
    zone would change.
    """

    change = AddAggregateHost


class AggregateRemoveHost(_AggregateHostCommand):
    """Remove a host from a host aggregate.

    It is refused if servers are on the host and its availability zone would change.
    """

    change = RemoveAggregateHost


class AggregateList(_AggregateCommand, Lister):
    """List the host aggregates by name, with their numbers of hosts."""

    only_reads = True
    arguments = (
        argument(
            "--host", type=argument_types.name, metavar="NAME", help="List only the aggregates of hosts with this name"
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return a row for each aggregate."""
        aggregates = lists.host_aggregates(self.client("scheduler"), ListHostAggregates(service_host=parsed_args.host))
        return _COLUMNS, [(*_values(aggregate), len(aggregate.hosts)) for aggregate in aggregates]


class AggregateShow(_NamedAggregateCommand, ShowOne):
    """Show a host aggregate with its metadata and its hosts."""

    only_reads = True

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Show the aggregate."""
        return self.shown_now(parsed_args.aggregate)


class AggregateDelete(_NamedAggregateCommand, ShowOne):
    """Delete a host aggregate; with --force, remove its hosts from it first.

    It is refused, also with --force, if servers are on a host whose availability zone would change.
    """

    arguments = (
        argument(
            "--force",
            action="store_true",
            help="Delete the aggregate even if it has hosts; the hosts themselves remain",
        ),
        argument("--dry-run", action="store_true", help="Only show what would be deleted"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Delete the aggregate and show its last state."""
        message = DeleteHostAggregate(
            request_id=ids.fresh(),
            aggregate=parsed_args.aggregate,
            force=parsed_args.force,
            dry_run=parsed_args.dry_run,
        )
        columns, values = self.shown(self.client("scheduler").call(message))
        return (*columns, "deleted"), (*values, not parsed_args.dry_run)


class AggregateSync(_AggregateCommand, Lister):
    """Find nodes that are missing in an aggregate of their host, and add them.

    Nodes can only be missing if a service of an older version, or a person, has changed the tables.
    """

    arguments = (argument("--dry-run", action="store_true", help="Only list the missing nodes"),)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return a row for each node."""
        message = SyncHostAggregates(request_id=ids.fresh(), dry_run=parsed_args.dry_run)
        found = self.client("scheduler").call(message)
        names = self.cell_names() if found else {}
        return ("aggregate", "uuid", "host", "cell", "provider", "added"), [
            (
                one.aggregate,
                one.aggregate_uuid,
                one.service_host,
                names.get(one.cell_uuid, one.cell_uuid),
                one.provider_uuid,
                not parsed_args.dry_run,
            )
            for one in found
        ]


def _values(aggregate: HostAggregate) -> tuple[Any, ...]:
    lines = [f"{key}={value}" for key, value in aggregate.metadata.items()]
    zone = aggregate.metadata.get(ZONE_KEY)
    return (*shown((aggregate.uuid, aggregate.name, zone)), ShownLines(dict(aggregate.metadata), lines))


def _metadata(parsed_args: argparse.Namespace) -> dict[str, str]:
    """Return the metadata to set.

    :raises InvalidRequest: there are two zones.
    """
    given, zone = dict(parsed_args.metadata), parsed_args.zone
    if zone is None:
        return given
    if given.get(ZONE_KEY, zone) != zone:
        raise errors.InvalidRequest(path="--zone", reason=f"--metadata {ZONE_KEY}={given[ZONE_KEY]} is another one")
    return given | {ZONE_KEY: zone}


def _changes(parsed_args: argparse.Namespace) -> dict[str, str | None]:
    """Return the metadata to set, and null for each key to remove.

    :raises InvalidRequest: there are two zones, or a key is to be set and removed.
    """
    given = _metadata(parsed_args)
    if both := sorted(given.keys() & set(parsed_args.unset)):
        raise errors.InvalidRequest(path="--unset", reason=f"{both[0]} is to be set, too")
    return {**dict.fromkeys(parsed_args.unset), **given}


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return argument_types.name(key), converted(value, Text, "a value has 4096 characters at most")
