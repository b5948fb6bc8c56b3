"""Arguments of the commands that run a cloud of their own: numbers, and the servers of the cloud."""

import argparse
import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness.termination import unwound_by_signals
from moorage import errors
from moorage.cli.arguments import Argument, argument, number_from
from moorage.cli.command import Configured

if TYPE_CHECKING:  # these modules need an extra
    from harness.cluster_nodes import Member
    from harness.galera import GaleraCluster
    from harness.rabbitmq_cluster import RabbitMQCluster
    from harness.servers import MariaDBServer, RabbitMQServer, ServerProcess

#: The URL scheme of the bus inside a process.
INPROC = "inproc:"
#: The most clients or services of one command: each is a thread or a process, or has several. Arbitrary.
MOST_THREADS = 1000
#: The kinds of private servers: one server of each, or a cluster of three nodes of each.
SINGLE, CLUSTER = "single", "cluster"


def count_option(name: str, default: int, what: str, *, least: int = 1, most: int = 1_000_000) -> Argument:
    """Declare an option for an integer from ``least`` to ``most``; its help is ``what``, followed by the default."""
    return argument(name, type=number_from(least, most), default=default, help=f"{what} (default: %(default)s)")


def number_between(least: float, most: float) -> Any:
    """Return a parser of numbers from ``least`` to ``most``."""

    def parse(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be between {least:g} and {most:g}")
        return value

    parse.__name__ = "number"
    return parse


@dataclass(frozen=True)
class Servers:
    """The URLs of bus and database, null if embedded; private servers: process ids by name, and servers or nodes."""

    transport_url: str | None = None
    database_url: str | None = None
    pids: Mapping[str, int] = field(default_factory=dict)
    programs: "Sequence[ServerProcess | Member[Any]]" = ()


def extra(module: str, user: str, name: str) -> ModuleType:
    """Return a module that is part of an extra of ours, or needs one.

    :param user: the part of the command that needs the module.
    :param name: the name of the extra.
    :raises ConfigurationError: the extra is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as fault:
        reason = f"{user} needs {fault.name}, which is not installed: pip install 'moorage[{name}]'"
        raise errors.ConfigurationError(reason=reason) from fault


def servers_argument(what: str) -> Argument:
    """Declare the option for private servers, which its help names."""
    return argument(
        "--servers",
        nargs="?",
        const=SINGLE,
        choices=(SINGLE, CLUSTER),
        help=f"Start {what} from Debian's packages for the run, or a cluster of three nodes of each; the default is "
        f"{SINGLE}",
    )


def private_mariadb(kind: str) -> "MariaDBServer | GaleraCluster":
    """Return a private MariaDB of this kind of ``--servers``, not yet started.

    :raises ConfigurationError: the extra that it needs is not installed.
    """
    if kind == CLUSTER:
        cluster: GaleraCluster = _programs("harness.galera").GaleraCluster()
        return cluster
    server: MariaDBServer = _programs("harness.servers").MariaDBServer()
    return server


def private_rabbitmq(kind: str) -> "RabbitMQServer | RabbitMQCluster":
    """Return a private RabbitMQ of this kind of ``--servers``, not yet started.

    :raises ConfigurationError: the extra that it needs is not installed.
    """
    if kind == CLUSTER:
        cluster: RabbitMQCluster = _programs("harness.rabbitmq_cluster").RabbitMQCluster()
        return cluster
    server: RabbitMQServer = _programs("harness.servers").RabbitMQServer()
    return server


def _programs(module: str) -> ModuleType:
    return extra(module, "--servers", "servers")


def require_broker(transport_url: str) -> None:
    """Refuse a bus that exists only inside one process.

    :raises ConfigurationError: the URL is that of such a bus.
    """
    if transport_url.startswith(INPROC):
        reason = f"services and clients are processes of their own, which {INPROC}// does not connect: name a broker"
        raise errors.ConfigurationError(reason=reason)


class OnServers(Configured):
    """Adds the options for a cloud on other servers than the embedded ones."""

    arguments: Sequence[Argument] = (
        argument("--transport-url", help="URL of an unused RabbitMQ virtual host (default: a bus inside this process)"),
        argument(
            "--database-url",
            help="URL of an empty MySQL or MariaDB database, which is left empty again (default: a temporary SQLite "
            "file)",
        ),
        servers_argument("a private MariaDB and RabbitMQ"),
    )

    @contextlib.contextmanager
    def servers(self, arguments: argparse.Namespace) -> Iterator[Servers]:
        """Yield the servers for the run.

        :raises ConfigurationError: the options exclude each other.
        """
        if not arguments.servers:
            with unwound_by_signals():
                yield Servers(arguments.transport_url, arguments.database_url)
            return
        if arguments.transport_url or arguments.database_url:
            raise errors.ConfigurationError(reason="--servers starts servers of its own: leave the URLs away")
        with (
            unwound_by_signals(),
            private_mariadb(arguments.servers) as mariadb,
            private_rabbitmq(arguments.servers) as rabbitmq,
        ):
            pids = {**mariadb.pids_by_name("mariadb"), **rabbitmq.pids_by_name("rabbitmq")}
            yield Servers(rabbitmq.url, mariadb.create_database("moorage"), pids, (*mariadb.members, *rabbitmq.members))
