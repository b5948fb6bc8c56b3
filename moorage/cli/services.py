"""The list of a cloud's services: services that report themselves, and agents by the heartbeats of their hosts.

The heartbeats of an agent's hosts reach the schedulers through its cell, whatever bus the agent uses.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from moorage import errors
from moorage.cli import lists
from moorage.cli.command import ListCommand, ShownAge, Table, shown
from moorage.messages import ListCells, ListHosts, ListServices
from moorage.model import HostState
from moorage.model.inspection import ServiceState

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceLine:
    """A service; ``heard`` and ``running`` are seconds since its last and its first report.

    ``state`` is ``up``, ``silent`` or ``stopped``.
    """

    kind: str
    name: str
    cell: str | None
    state: str
    heard: float
    running: float | None = None
    version: str | None = None
    machine: str | None = None


def reported(services: Iterable[ServiceState], cells: Mapping[str, str], silent_after: float) -> list[ServiceLine]:
    """Return a line for each service that has reported; ``cells`` has the names of cells by uuid."""
    return [
        ServiceLine(
            kind=known.service.kind,
            name=known.service.name,
            cell=_cell(known.service.cell_uuid, cells),
            state="stopped" if known.stopped else _state(known.heard, silent_after),
            heard=round(known.heard, 1),
            running=round(known.running, 1),
            version=known.service.version,
            machine=known.service.machine,
        )
        for known in services
    ]


def to_call(services: Iterable[ServiceState], kind: str, silent_after: float) -> list[str]:
    """Return the names of the services of a kind that have reported recently and have not been stopped.

    If there are none, return the silent ones: they may be running, if their reports are lost or come seldom.
    """
    running = [known for known in services if known.service.kind == kind and not known.stopped]
    recent = [known for known in running if known.heard <= silent_after]
    return sorted(known.service.name for known in recent or running)


def agents(hosts: Iterable[HostState], cells: Mapping[str, str], silent_after: float) -> list[ServiceLine]:
    """Return a line for each agent, with the most recent heartbeat of its hosts."""
    heard: dict[tuple[str, str], float] = {}
    for host in hosts:
        key = (host.cell_uuid, host.agent)
        heard[key] = min(host.heartbeat_age, heard.get(key, host.heartbeat_age))
    return [
        ServiceLine("compute", agent, _cell(cell_uuid, cells), _state(age, silent_after), round(age, 1))
        for (cell_uuid, agent), age in sorted(heard.items())
    ]


def _cell(uuid: str | None, cells: Mapping[str, str]) -> str | None:
    return None if uuid is None else cells.get(uuid, uuid)


def _state(heard: float, silent_after: float) -> str:
    return "up" if heard <= silent_after else "silent"


class ServiceList(ListCommand):
    """List the services of the cloud: schedulers, the placement role, conductors and agents.

    A service that was shut down is listed as `stopped` for one day. A service that sends no heartbeat for longer than
    `[service] silent_after` is `silent`: it may have died, or it cannot reach the placement role. Agents send no
    heartbeats: their state comes from the reports of their hosts.
    """

    def take_action(self, _parsed_args: Any) -> Table:
        """Query the placement role, and a scheduler for the agents."""
        silent_after = self.calling.service.silent_after
        placement = self.client("placement")
        cells = {cell.uuid: cell.name for cell in placement.call(ListCells(without_databases=True))}
        services = placement.call(ListServices())
        lines = reported(services, cells, silent_after)
        try:
            hosts = lists.hosts(self.client("scheduler"), ListHosts())
            lines += agents(hosts, cells, silent_after)
        except errors.Unavailable as fault:
            LOG.warning("Agents are not listed: %s", fault)
        return tuple(field.name for field in fields(ServiceLine)), [_row(line) for line in lines]


def _row(line: ServiceLine) -> tuple[Any, ...]:
    values = asdict(line)
    return shown(ShownAge(value) if name in {"heard", "running"} else value for name, value in values.items())
