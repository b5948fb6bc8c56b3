"""A whole cloud in one process: each service has its own configuration, and bus and database can be of any kind."""

import contextlib
import functools
import sqlite3
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import sqlalchemy
from oslo_config import cfg

from compute.fake.guest_file import GuestFile
from compute.service import ComputeService
from conductor.schema import CELL, CONDUCTOR
from conductor.service import CellConductor, SuperConductor
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.bus.bus import Bus, Client
from moorage.cli import lists
from moorage.config import options
from moorage.config.unknown import PLUGIN_GROUPS
from moorage.db.database import Database
from moorage.db.schemas import compatibility_table
from moorage.messages import ListHosts
from moorage.model import Guest, HostState
from moorage.service.process import Service
from placement_store import cells
from placement_store.schema import MAIN
from placement_store.service import PlacementService
from scheduler.plugins.loading import list_opts
from scheduler.service import SchedulerService

_SCHEMAS = (MAIN, CONDUCTOR, CELL)
#: The file of the default database, in the folder of the cloud.
_FILE = "moorage.sqlite"

#: Values by group and option.
Settings = Mapping[str, Mapping[str, Any]]


def merged(*sources: Settings) -> dict[str, dict[str, Any]]:
    """Return the settings of all sources; those of a later source override those of an earlier one."""
    settings: dict[str, dict[str, Any]] = {}
    for source in sources:
        for group, values in source.items():
            settings.setdefault(group, {}).update(values)
    return settings


def short_run(transport_url: str, database_connection: str) -> Settings:
    """Return the settings of services for a short run on a bus and a database: they report frequently."""
    return {
        "DEFAULT": {"transport_url": transport_url},
        "database": {"connection": database_connection},
        "conductor": {"report_interval": 0.5},
        "compute": {"report_interval": 0.5},
    }


def write_settings(file: Path, settings: Settings, repeated: Collection[tuple[str, str]] = ()) -> Path:
    """Write a configuration file, and return its path.

    :param repeated: the options, by group and name, that have a line for each value of a list.
    """
    lines = []
    for group, values in settings.items():
        lines.append(f"[{group}]")
        for name, value in values.items():
            each = [*map(str, value)] if isinstance(value, list | tuple) else [str(value)]
            lines += [f"{name} = {one}" for one in (each if (group, name) in repeated else [", ".join(each)])]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@dataclass(frozen=True, kw_only=True)
class CloudSpec:
    """The specification of a cloud; hosts are distributed over the cells in turn.

    ``settings`` (group, option, value) apply to every service, and to plug-ins (``filters``, ``weighers``,
    ``request_filters``). ``transport_url`` and ``database_connection`` default to an in-process bus and a temporary
    SQLite file. Each of the ``schedulers`` also serves the placement role, unless ``placement_apart``.

    :raises ConfigurationError: a number is not one, or is too small: without a scheduler or a cell no host comes up.
    """

    hosts: int = 10
    cells: int = 1
    schedulers: int = 1
    placement_apart: bool = False
    seed: int = 0
    transport_url: str | None = None
    database_connection: str | None = None
    settings: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("hosts", 0), ("cells", 1 if self.hosts else 0), ("schedulers", 1)):
            number = getattr(self, name)
            if not isinstance(number, int) or number < least:
                raise errors.ConfigurationError(reason=f"{name}={number!r} is not a whole number from {least}")

    @property
    def cell_names(self) -> list[str]:
        """The names of the cells."""
        return [f"cell{number + 1}" for number in range(self.cells)]


@functools.cache
def _empty_schemas() -> bytes:
    """Return an SQLite file with the schemas, as their migrations create it: they run once per process."""
    with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
        path = f"{folder}/{_FILE}"
        with contextlib.closing(Database(f"sqlite:///{path}", "main")) as database:
            for schema in _SCHEMAS:
                schema.upgrade(database)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return connection.serialize()


class RunningCloud:
    """A running cloud; its services can be stopped and started one by one."""

    def __init__(self, plan: CloudSpec) -> None:
        self.plan = plan
        self._closing = contextlib.ExitStack()
        self.services: dict[str, Service] = {}
        #: All services that were ever started, in the order of their first starts.
        self._started: dict[str, None] = {}
        self.cell_names = plan.cell_names

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Create the schemas and cells, start all services, and wait until every host is up.

        :raises ConfigurationError: the database is not empty.
        """
        self.folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="moorage-")))
        self.transport_url = self.plan.transport_url or f"inproc://{ids.fresh()}/"
        self.database_connection = self.plan.database_connection or f"sqlite:///{self.folder / _FILE}"
        self.conf = self.configuration()
        self.database = Database(self.database_connection, "main")
        self._closing.callback(self.database.close)
        self._create_schemas()
        # Longer than any service waits: a busy machine must not look like a fault of the cloud.
        self._bus = Bus(self.configuration(rpc={"call_timeout": 60.0}))
        self._closing.callback(self._bus.close)
        for name in self.service_names():
            self.add(name, self.anew(name))
        self.wait_for_hosts()

    def stop(self) -> None:
        """Stop all services, the last one started first, and remove the cloud's files and schemas.

        A service that was started again keeps its former place in this order, so that the services that need it stop
        before it and do not wait for its answers.
        """
        for name in reversed(self._started):
            if name in self.services:
                self.stop_service(name)
        self._closing.close()

    def add(self, name: str, service: Service) -> None:
        """Start one more service."""
        self._started.setdefault(name)
        service.start()
        self.services[name] = service

    def stop_service(self, name: str) -> None:
        """Stop one service."""
        self.services.pop(name).stop()

    def stop_agents(self) -> None:
        """Stop the agents; their hosts stay up for `[scheduler] host_down_after`."""
        for name in [name for name, service in self.services.items() if isinstance(service, ComputeService)]:
            self.stop_service(name)

    def client(self, topic: str, timeout: float | None = None, server: str | None = None) -> Client:
        """Return a client of a topic of the main bus, or of one server of it."""
        return self._bus.client(topic, server, timeout)

    def configuration(self, **groups: Mapping[str, Any]) -> cfg.ConfigOpts:
        """Return a configuration for one service: the cloud's options, the settings, then ``groups``."""
        settings = merged(short_run(self.transport_url, self.database_connection), self.plan.settings, groups)
        # Options of plug-ins are in a file, because only a scheduler with these plug-ins registers them.
        of_plugins = {group: settings.pop(group) for group in PLUGIN_GROUPS if group in settings}
        if not of_plugins:
            return options.new(settings)
        repeated = {
            (group, name) for group, each in list_opts() for opt in each if opt.multi for name in (opt.name, opt.dest)
        }
        return options.new(settings, files=[write_settings(self.folder / "plugins.conf", of_plugins, repeated)])

    def hosts(self) -> list[HostState]:
        """Return all hosts of the registry."""
        return lists.hosts(self.client("scheduler"), ListHosts())

    def wait_for_hosts(self, seconds: float = 120.0) -> None:
        """Wait until all specified hosts are up.

        :raises TimeoutError: for ``seconds`` no additional host has come up.
        """
        up = 0

        def all_up() -> bool:
            nonlocal up
            up = sum(host.up for host in self.hosts())
            return up >= self.plan.hosts

        # Listing hosts is work too, and it grows with the number of hosts.
        interval = max(0.02, self.plan.hosts / 20_000)
        wait_until(all_up, f"{self.plan.hosts} hosts to be up", seconds, interval, progress=lambda: up)

    def _create_schemas(self) -> None:
        if self.plan.database_connection:
            self._closing.enter_context(created_schemas(self.database, self.plan))
            return
        # No connection has opened the file yet.
        (self.folder / _FILE).write_bytes(_empty_schemas())
        create_cells(self.database, self.plan)

    def service_names(self) -> list[str]:
        """Return the names of all services, in the order in which they start."""
        names = ["placement"] if self.plan.placement_apart else []
        names += [*(f"scheduler{number + 1}" for number in range(self.plan.schedulers)), "conductor"]
        for cell in self.cell_names:
            names += [f"conductor-{cell}", f"compute-{cell}"] if self._hosts_of(cell) else [f"conductor-{cell}"]
        return names

    def anew(self, name: str) -> Service:
        """Return the service of a name, which begins with its kind, not yet started."""
        kind, _, cell = name.partition("-")
        if kind == "compute":
            return self.compute(cell, self._hosts_of(cell))
        if kind == "placement":
            return PlacementService(self.configuration(), name)
        if kind.startswith("scheduler"):
            own = {"serve_placement": not self.plan.placement_apart}
            return SchedulerService(self.configuration(scheduler=own), name)
        return CellConductor(self.configuration(), name, cell) if cell else SuperConductor(self.configuration(), name)

    def _hosts_of(self, cell: str) -> int:
        return len(range(self.cell_names.index(cell), self.plan.hosts, self.plan.cells))

    def compute(self, cell: str, hosts: int) -> ComputeService:
        """Return an agent of a cell, not yet started; its file of guests remains when the agent ends."""
        driver = self.driver_options(cell, hosts)
        return ComputeService(self.configuration(compute={"agent": f"agent-{cell}"}, fake_driver=driver), cell)

    def driver_options(self, cell: str, hosts: int, **changes: Any) -> dict[str, Any]:
        """Return the options of the driver of a cell's agent, with changes."""
        state_file = str(self.folder / f"agent-{cell}.sqlite")
        return {"hosts": hosts, "host_prefix": f"{cell}-host", "state_file": state_file, **changes}


def guests_in(files: Iterable[Path]) -> list[Guest]:
    """Return all guests in the files of agents."""
    found: list[Guest] = []
    for path in files:
        with contextlib.closing(GuestFile(path)) as file:
            file.open()
            found += file.guests()
    return found


@contextlib.contextmanager
def created_schemas(database: Database, spec: CloudSpec) -> Iterator[None]:
    """Create the schemas and the cells of a cloud in an empty database, and empty it again at the end.

    :raises ConfigurationError: the database is not empty, or another run has begun on it meanwhile.
    """
    not_empty = errors.ConfigurationError(reason="the database is not empty: choose an empty one")
    if database.read(_table_names):
        raise not_empty
    try:
        # A part of the main schema. Of several runs that found the database empty, only one can create it.
        database.write(lambda connection: compatibility_table(MAIN.name).create(connection, checkfirst=False))
    except sqlalchemy.exc.OperationalError as fault:
        if database.read(_table_names):
            raise not_empty from fault
        raise
    try:
        for schema in _SCHEMAS:
            schema.upgrade(database)
        create_cells(database, spec)
        yield
    finally:
        for schema in _SCHEMAS:
            schema.drop(database)


def _table_names(connection: sqlalchemy.Connection) -> list[str]:
    return sqlalchemy.inspect(connection).get_table_names()


def create_cells(database: Database, spec: CloudSpec) -> None:
    """Create the cells of a cloud."""
    for name in spec.cell_names:
        cells.create(database, name=name, uuid=ids.derived("harness", spec.seed, "cell", name))
