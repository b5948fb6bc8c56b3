"""The messages with which an agent reports to its cell that its hosts run, have started, and have returned."""

from typing import Any

from moorage import ids
from moorage.messages import AttemptsGone, BuildOnHost, HostsReported, ListEndedAttempts, ReportHostsInCell, ReturnHosts
from moorage.model import EndedAttempt, Guest
from support.conductor.builders import World, report


def report_hosts(world: World, **content: Any) -> HostsReported:
    return world.cell_call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", **content))


def start_hosts(world: World, *hosts: str) -> HostsReported:
    """Report that hosts have started, and so have to return."""
    return report_hosts(world, hosts=tuple(report(host) for host in hosts), started=hosts)


def returning(world: World, *hosts: str) -> tuple[str, ...]:
    """Report that hosts are alive, and return which of them still have to return."""
    return report_hosts(world, alive=hosts).returning


def list_of_guests(host: str, lives: dict[str, int], *guests: Guest) -> ReturnHosts:
    return ReturnHosts(request_id=ids.fresh(), agent="agent", hosts=(host,), guests=guests, lives=lives)


def return_hosts(world: World, *hosts: str, guests: tuple[Guest, ...] = ()) -> None:
    """List the guests of hosts, which thereby return, in their current lives."""
    lives = report_hosts(world).lives
    world.cell_call(ReturnHosts(request_id=ids.fresh(), agent="agent", hosts=hosts, guests=guests, lives=lives))


def ended_attempts(world: World, *hosts: str) -> list[EndedAttempt]:
    return world.cell_call(ListEndedAttempts(agent="agent", hosts=hosts))


def report_gone(world: World, *attempts: EndedAttempt, **fields: Any) -> None:
    """Report that the guests of ended attempts are gone."""
    world.cell_call(AttemptsGone(request_id=ids.fresh(), agent="agent", attempts=attempts, **fields))


def guest_of(build: BuildOnHost) -> Guest:
    return Guest(
        instance_uuid=build.instance_uuid, host=build.host, attempt_id=build.attempt_id, claim_id=build.claim_id
    )
