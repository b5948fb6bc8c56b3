"""The commands `moorage host list`, `set` and `delete`."""

import argparse
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cliff.show import ShowOne

from moorage import errors, ids
from moorage.cli import lists
from moorage.cli.arguments import Argument, argument, one_of, positive
from moorage.cli.command import Configured, ListCommand, Record, ShownAge, ShownUse, ShownValue, Table
from moorage.messages import DeleteHost, ListCells, ListHosts, ListResourceProviders, SetHost
from moorage.model import HostState, ResourceProvider
from scheduler.commands import running

LOG = logging.getLogger(__name__)

_COLUMNS = (
    *("host", "node", "cell", "agent", "zone", "up", "disabled", "reason", "forced_down", "heartbeat_age"),
    *("instances", "io_ops", "failed_builds"),
)
#: The columns of the usage of each host's provider tree, each with the resource classes that it adds up.
_USE = {"vcpus": ("VCPU", "PCPU"), "memory_mb": ("MEMORY_MB",), "disk_gb": ("DISK_GB",)}


class WithCells(Configured):
    """A command that takes and shows cells by name."""

    def cell_names(self) -> dict[str, str]:
        """Return the name of each cell by uuid; nothing if the placement role is unreachable: then show the uuids."""
        try:
            return self._named_cells()
        except errors.BusUnavailable:
            raise  # no other role can be called, either
        except errors.Unavailable as fault:
            LOG.warning("Cells are shown by their uuids: %s", fault)
            return {}

    def cell_uuid(self, name: str | None) -> str | None:
        """Return the uuid of the cell of a name, or None for None.

        :raises CellNotFound: the cell does not exist.
        """
        if name is None:
            return None
        for uuid, known in self._named_cells().items():
            if known == name:
                return uuid
        raise errors.CellNotFound(kind="cell", name=name)

    def _named_cells(self) -> dict[str, str]:
        return {cell.uuid: cell.name for cell in self.client("placement").call(ListCells(without_databases=True))}


class _HostCommand(WithCells, ShowOne):
    arguments: Sequence[Argument] = (
        argument("host", metavar="NAME", help="Host (name)"),
        argument("--cell", metavar="NAME", help="Cell of the host, if several cells have a host of this name"),
    )


class HostList(WithCells, ListCommand):
    """List the hosts that the schedulers know, with their usage.

    Usage is shown as used/capacity. The capacity includes allocation ratios and excludes reserved amounts.
    """

    arguments = (argument("--cell", metavar="NAME", help="List only the hosts of this cell"),)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return a row for each host."""
        names = self.cell_names()
        hosts = lists.hosts(self.client("scheduler"), ListHosts(cell_uuid=self.cell_uuid(parsed_args.cell)))
        use = self._use()
        nothing = (ShownValue(None),) * len(_USE)
        return (*_COLUMNS, *_USE), [(*_row(host, names), *use.get(host.compute_node_uuid, nothing)) for host in hosts]

    def _use(self) -> dict[str, tuple[ShownUse, ...]]:
        """Return the usage of each host by its root provider's uuid; nothing if the placement role is unreachable."""
        try:
            return _use_of_trees(lists.providers(self.client("placement"), ListResourceProviders()))
        except errors.Unavailable as fault:
            LOG.warning("What is used of the hosts is not known: %s", fault)
            return {}


class HostSet(_HostCommand):
    """Disable or enable a host for new servers, or declare it down.

    After --disable returns, no scheduler places new servers on the host. If one of the schedulers does not confirm
    this, the host is still disabled, and the exit status is 1.
    """

    #: The schedulers that may still place servers on the host, by name, each with the reason.
    _behind: Mapping[str, str] | None = None

    arguments = (
        argument("--reason", help="Reason for disabling the host"),
        one_of(
            argument(
                "--disable", dest="disabled", action="store_true", default=None, help="Place no new servers on the host"
            ),
            argument("--maintenance", metavar="REASON", help="The same as --disable --reason REASON"),
            argument(
                "--enable",
                dest="disabled",
                action="store_false",
                default=None,
                help="Place new servers on the host again",
            ),
        ),
        one_of(
            argument(
                "--forced-down",
                dest="forced_down",
                action="store_true",
                default=None,
                help="Treat the host as down, even if it reports. Use it only if its guests are certainly not running "
                "any more",
            ),
            argument(
                "--not-forced-down",
                dest="forced_down",
                action="store_false",
                default=None,
                help="Use the reports of the host again",
            ),
        ),
        one_of(
            argument(
                "--wait",
                action="store_true",
                default=True,
                help="With --disable: wait until all schedulers have stopped placing servers on the host (default)",
            ),
            argument(
                "--no-wait",
                dest="wait",
                action="store_false",
                help="Do not wait: the schedulers notice the change within [scheduler] view_max_age, and may still "
                "finish decisions in progress",
            ),
        ),
        argument(
            "--timeout",
            type=positive,
            default=10.0,
            metavar="SECONDS",
            help="Time to wait for each scheduler (default: %(default)g)",
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Change the host and return its row."""
        disabled, reason = parsed_args.disabled, parsed_args.reason
        if parsed_args.maintenance is not None:
            if reason is not None:
                raise errors.InvalidRequest(
                    path="--reason", reason="it cannot be combined with --maintenance, which gives the reason"
                )
            disabled, reason = True, parsed_args.maintenance
        if disabled is None and reason is None and parsed_args.forced_down is None:
            raise errors.InvalidRequest(path="command line", reason="give at least one change")
        host = self.client("scheduler").call(
            SetHost(
                request_id=ids.fresh(),
                service_host=parsed_args.host,
                cell_uuid=self.cell_uuid(parsed_args.cell),
                disabled=disabled,
                disabled_reason=reason,
                forced_down=parsed_args.forced_down,
            )
        )
        if disabled and parsed_args.wait:
            self._behind = running.behind(self.calling, self.clients(parsed_args.timeout), parsed_args.timeout)
        return _COLUMNS, _row(host, self.cell_names())

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Show the host; the exit status is 1 if a scheduler may not have seen the change."""
        status = super().run(parsed_args)
        for name, reason in (self._behind or {}).items():
            LOG.error("Scheduler %s has not confirmed that it places no more servers on the host: %s", name, reason)
        return status or int(bool(self._behind))


class HostDelete(_HostCommand):
    """Delete a host that will not return, with its resource providers and its residues.

    The host must be down or forced down, and must have no allocations except residues. If it returns later, it is
    registered as a new host.
    """

    arguments = (argument("--dry-run", action="store_true", help="Only check whether the host can be deleted"),)

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Delete the host."""
        message = DeleteHost(
            request_id=ids.fresh(),
            service_host=parsed_args.host,
            cell_uuid=self.cell_uuid(parsed_args.cell),
            dry_run=parsed_args.dry_run,
        )
        self.client("scheduler").call(message)
        return ("host", "deleted"), (parsed_args.host, not parsed_args.dry_run)


def _row(host: HostState, cell_names: Mapping[str, str]) -> tuple[Any, ...]:
    return (
        host.service_host,
        host.nodename,
        cell_names.get(host.cell_uuid, host.cell_uuid),
        host.agent,
        host.availability_zone,
        host.up,
        host.disabled,
        ShownValue(host.disabled_reason),
        host.forced_down,
        ShownAge(host.heartbeat_age),
        host.instances,
        host.io_ops,
        host.failed_builds,
    )


def _use_of_trees(providers: Iterable[ResourceProvider]) -> dict[str, tuple[ShownUse, ...]]:
    """Return the usage and the capacity of each tree, by the uuid of its root."""
    used: dict[str, Counter[str]] = {}
    total: dict[str, Counter[str]] = {}
    for provider in providers:
        root = provider.root_provider_uuid
        used.setdefault(root, Counter()).update(provider.used)
        capacities = {name: int(inventory.capacity) for name, inventory in provider.inventories.items()}
        total.setdefault(root, Counter()).update(capacities)
    return {
        root: tuple(
            ShownUse(sum(used[root][name] for name in names), sum(total[root][name] for name in names))
            for names in _USE.values()
        )
        for root in total
    }
