"""The check of all parts of a cloud: a line for each part, even while other parts are down."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import astuple, dataclass, fields
from importlib import metadata
from typing import Any

from oslo_config import cfg
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from moorage import errors
from moorage.addresses import mask_url
from moorage.cli import lists, services
from moorage.cli.arguments import argument, positive
from moorage.cli.clients import CheckedClient, Clients
from moorage.cli.command import ListCommand, Table, shown
from moorage.config.options import main_database, required
from moorage.db.database import Database
from moorage.db.schemas import Schema, known_schemas
from moorage.messages import ListCells, ListHosts, ListServices, ShowPolicy
from moorage.model import Cell
from moorage.model.inspection import PolicyState

#: The number of parts that are checked in parallel, so that the time-outs of unavailable parts overlap.
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Line:
    """The state of a part: ``ok`` with details, or ``wrong`` with the reason."""

    part: str
    state: str
    detail: str


#: A part, and a function that returns the details of its line, or raises an error with the reason why it is wrong.
Check = tuple[str, Callable[[], str]]


def _line(check: Check) -> Line:
    part, ask = check
    try:
        return Line(part, "ok", ask())
    except errors.MoorageError as fault:
        return Line(part, "wrong", fault.with_code)
    except ArgumentError:
        # Omit the error's text: it contains the URL, and so the password.
        return Line(part, "wrong", "its database's URL is none")
    except SQLAlchemyError as fault:
        return Line(part, "wrong", str(getattr(fault, "orig", None) or type(fault).__name__))


class Status:
    """All checks of a cloud from this machine."""

    def __init__(self, conf: cfg.ConfigOpts, clients: Clients) -> None:
        self._conf = conf
        self._clients = clients

    def lines(self) -> list[Line]:
        """Run all checks, beginning with those on which others depend."""
        first: list[Check] = [
            ("bus", lambda: self._bus(None)),
            *(self._role(topic) for topic in ("placement", "scheduler", "conductor")),
            self._schema("main", None),
            self._schema("conductor", self._conf.conductor.connection),
            ("distributions", _no_intruders),
        ]
        cells: list[Cell] = []
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            lines = list(threads.map(_line, [*first, ("cells", lambda: self._learn(cells))]))
            lines += threads.map(_line, [check for cell in cells for check in self._of_cell(cell)])
        return [*lines, *self._services({cell.uuid: cell.name for cell in cells})]

    def _bus(self, transport_url: str | None) -> str:
        bus = self._clients.bus(transport_url)
        bus.probe()
        bus.check_alarms()
        return bus.url

    def _role(self, topic: str) -> Check:
        return f"role {topic}", lambda: _answers(self._clients.topic(topic))

    def _schema(self, name: str, url: str | None, cell: str | None = None) -> Check:
        """Return the check of a schema; without its own URL, the schema is in the main database."""
        part = f"schema {name}" if cell is None else f"schema {name} of {cell}"
        named = name if cell is None else f"cell {cell}"
        return part, lambda: _revision(known_schemas()[name], url or main_database(self._conf), named)

    def _learn(self, cells: list[Cell]) -> str:
        known = self._clients.topic("placement").call(ListCells())
        cells += known
        return ", ".join(cell.name for cell in cells) or "no cells yet"

    def _of_cell(self, cell: Cell) -> Iterator[Check]:
        if cell.transport_url is not None:
            yield f"bus of {cell.name}", lambda: self._bus(cell.transport_url)
        yield f"role conductor of {cell.name}", lambda: _answers(self._clients.cell(cell))
        yield self._schema("cell", cell.database_connection, cell.name)

    def _services(self, cells: Mapping[str, str]) -> list[Line]:
        """Return a line for each service that reports itself, and one for the agents of each cell."""
        silent_after = self._conf.service.silent_after

        def reported() -> list[Line]:
            answered = self._clients.topic("placement").call(ListServices())
            known = services.reported(answered, cells, silent_after)
            schedulers = [line.name for line in known if line.kind == "scheduler" and line.state == "up"]
            return [*map(_service, known), *(line for name in schedulers for line in self._policy(name))]

        def agents() -> list[Line]:
            hosts = lists.hosts(self._clients.topic("scheduler"), ListHosts())
            # Hosts that the operator has disabled or forced down may be silent.
            expected = [host for host in hosts if not host.disabled and not host.forced_down]
            return _agents(services.agents(expected, cells, silent_after))

        return [*_lines("services", reported), *_lines("agents", agents)]

    def _policy(self, scheduler: str) -> Iterator[Line]:
        """Yield lines for a refused reload and for broken or slow plug-ins of a scheduler."""
        try:
            policy = self._clients.topic("scheduler", scheduler).call(ShowPolicy())
        except errors.MoorageError:
            # The scheduler is of an earlier version, or does not answer, which the check of its role reports.
            return
        if policy.refused is not None:
            refused = f"the configuration of {policy.refused.age:,.0f} s ago is refused: {policy.refused.reason}"
            yield Line(f"policy of {scheduler}", "wrong", refused)
        if policy.broken or policy.slow:
            yield _plugins(scheduler, policy)


def _answers(client: CheckedClient) -> str:
    client.ping()
    return "answers"


def _plugins(scheduler: str, policy: PolicyState) -> Line:
    details = []
    if policy.breaking:
        details.append(f"no request has been decided since it broke: {', '.join(policy.breaking)}")
    if policy.broken:
        counts = ", ".join(f"{plugin} {count:,} time(s)" for plugin, count in policy.broken.items())
        details.append(f"broken since it was started: {counts}")
    if policy.slow:
        slow = ", ".join(f"{plugin} {seconds:.1f} s" for plugin, seconds in policy.slow.items())
        details.append(f"slowest answers: {slow}")
    return Line(f"plug-ins of {scheduler}", "wrong" if policy.breaking else "ok", "; ".join(details))


def _lines(part: str, ask: Callable[[], list[Line]]) -> list[Line]:
    found: list[Line] = []

    def learn() -> str:
        found.extend(ask())
        return "none is known"

    fallback = _line((part, learn))
    return found or [fallback]


def _revision(schema: Schema, url: str, name: str) -> str:
    with closing(Database(url, name, pool_size=1)) as database:
        if database.lacks_file:
            raise errors.StoreUnavailable(schema=name, reason=f"there is no file {database.url.database}")
        return f"{schema.check(database)} in {mask_url(url)}"


def _service(line: services.ServiceLine) -> Line:
    part = " ".join(word for word in (line.kind, line.name, line.cell and f"of {line.cell}") if word)
    heard = f"version {line.version} on {line.machine}, heard of {line.heard:g} s ago"
    if line.state == "stopped":
        return Line(part, "ok", f"stopped in order {line.heard:g} s ago: version {line.version} on {line.machine}")
    return Line(part, "ok" if line.state == "up" else "wrong", heard)


def _agents(lines: Sequence[services.ServiceLine]) -> list[Line]:
    by_cell: dict[str, list[services.ServiceLine]] = {}
    for line in lines:
        by_cell.setdefault(line.cell or "", []).append(line)
    found = []
    for cell, of_cell in sorted(by_cell.items()):
        silent = [line.name for line in of_cell if line.state != "up"]
        detail = f"{len(of_cell)} heard of" if not silent else f"{len(silent)} of {len(of_cell)} silent: "
        found.append(Line(f"agents of {cell}", "wrong" if silent else "ok", detail + ", ".join(silent)))
    return found


def intruders(owners: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the other distributions with files in Moorage's top-level packages, by package.

    :param owners: the result of :func:`importlib.metadata.packages_distributions`.
    """
    ours = {point.value.split(".")[0] for point in metadata.distribution("moorage").entry_points}
    foreign = {name: sorted({*owners.get(name, ())} - {"moorage"}) for name in sorted(ours)}
    return {name: others for name, others in foreign.items() if others}


def _no_intruders() -> str:
    found = intruders(metadata.packages_distributions())
    if found:
        named = "; ".join(f"{name} is also in {', '.join(others)}" for name, others in found.items())
        raise errors.ConfigurationError(reason=f"two distributions share a name: {named}")
    return "no other package has files in these packages"


class StatusShow(ListCommand):
    """Check each part of the cloud: message bus, roles, schemas, services and installed packages.

    The exit status is 0 if all checks pass, and 1 otherwise.
    """

    arguments = (
        argument(
            "--timeout",
            type=positive,
            default=5.0,
            metavar="SECONDS",
            help="Time to wait for the answer of each part (default: %(default)g)",
        ),
    )

    def take_action(self, parsed_args: Any) -> Table:
        """Check all parts."""
        # Check this once, and not for every part.
        required(self.conf, "DEFAULT", "transport_url")
        # Close the clients after each round of --watch, and not only when the command ends.
        with closing(Clients(self.conf, parsed_args.timeout)) as clients:
            lines = Status(self.conf, clients).lines()
        self.failed = any(line.state != "ok" for line in lines)
        return tuple(field.name for field in fields(Line)), [shown(astuple(line)) for line in lines]
