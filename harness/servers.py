"""Private MariaDB and RabbitMQ servers that can be stopped, killed and started again on their data.

They run from Debian's packages, on free ports of 127.0.0.1, in a temporary directory, as the present user. pifpaf runs
such programs; this module adds a TCP port, users and grants, a port mapper and names of RabbitMQ's own, and a second
start on the same data.
"""

import atexit
import contextlib
import getpass
import pathlib
import secrets
import signal
import socket
from collections.abc import Sequence
from typing import ClassVar, Self

import psutil
import pymysql
from pifpaf import drivers
from pifpaf.drivers.mysql import MySQLDriver
from pifpaf.drivers.rabbitmq import RabbitMQDriver

from harness.termination import ends_with_this_process

USER = "moorage"
STOP_SECONDS = 60  # a clean stop takes one or two; this is for a machine that is busy with something else
# Below the range that Linux hands out to connections: a stopped server's port is still free when it comes back.
PORTS = range(15000, 32000)
# An ordinary user's PATH has no sbin, and Debian's own wrapper in it lets only root start a RabbitMQ.
PLACES = ["/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/libexec", "/usr/local/sbin"]

#: Erlang's port mapper in the foreground, and what it prints when it answers.
MAPPER = ("epmd", "-d", "-d")
MAPPER_READY = "entering the main select"


class ServersMissing(Exception):
    """A server's program is not on this machine; the message names the Debian package to install."""


def free_ports(count: int) -> list[int]:
    """Return unused ports that no outgoing connection takes; all are held until the last is found: no two are equal."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            port = secrets.choice(PORTS)
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found


class ServerProcess(drivers.Driver):  # type: ignore[misc]  # pifpaf has no types
    """A server process that can be started again on its data directory, which is removed by ``close``."""

    programs: ClassVar[tuple[str, ...]]
    package: ClassVar[str]
    #: Folders with programs that are found before those of the machine.
    places: Sequence[str] = ()
    _prepared = False
    _main: psutil.Popen | None = None

    def start(self) -> None:
        """Start the server and wait until it takes connections: on new data the first time, then on the same data.

        :raises ServersMissing: when the server is not installed
        :raises RuntimeError: with the server's output, when it does not come up
        """
        if self._main is not None:
            raise RuntimeError(f"this {self.package} is running already")
        for program in self.programs:
            if self.find_executable(program, PLACES) is None:
                raise ServersMissing(f"there is no {program} here: install the Debian package {self.package}")
        if not self._prepared:
            atexit.register(self.close)
            self.setUp()
            self._prepared = True
        self._main = self._launch()

    @property
    def pid(self) -> int:
        """The id of the server's process; 0 while it does not run."""
        return 0 if self._main is None else int(self._main.pid)

    @property
    def members(self) -> "Sequence[ServerProcess]":
        """The parts that can be killed and started again by themselves."""
        return (self,)

    def pids_by_name(self, name: str) -> dict[str, int]:
        """Return the ids of all processes of the server, by names that begin with this one."""
        return {name: self.pid}

    def stop(self) -> None:
        """Stop the server in order; its data stay."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server by SIGKILL, as a crash would; its data stay as they are at that moment."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End the server, if it runs, and remove its data; it cannot be started again."""
        atexit.unregister(self.close)
        self._end(signal.SIGKILL)  # the data go as well: there is nothing to keep in order
        if self._prepared:
            self._prepared = False
            self.cleanUp()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def putenv(self, key: str, value: str, raw: bool = False) -> None:
        """Keep a variable for the server alone: two servers would fight over the environment of this process."""
        self.env[key if raw else f"{self.env_prefix}_{key}"] = value

    def _setUp(self) -> None:  # noqa: N802  # the name is the fixture's
        drivers.Driver._setUp(self)  # noqa: SLF001  # past the one of the pifpaf driver, which starts a server
        self._prepare(pathlib.Path(self.tempdir))

    def _prepare(self, directory: pathlib.Path) -> None:
        """Fill the server's own directory, once."""
        raise NotImplementedError

    def _launch(self) -> psutil.Popen:
        """Start the process on the directory's data, and wait until it is ready."""
        raise NotImplementedError

    def _end(self, how: signal.Signals) -> None:
        process, self._main = self._main, None
        if process is not None:
            finish(process, how)

    def _run(self, *command: str, wait_for_line: str | None = None) -> psutil.Popen:
        process, _ = self._exec(
            [*ends_with_this_process(), *command],
            path=[*self.places, *PLACES],
            env=self.env,
            wait_for_line=wait_for_line,
        )
        return process

    def _kill(self, parent: psutil.Popen) -> None:
        # pifpaf would look for a process group by number, which may belong to another process by now.
        if parent.returncode is None:
            finish(parent, signal.SIGKILL)


def finish(process: psutil.Popen, how: signal.Signals | None) -> None:
    """Send a signal, if any, and wait for the end of the server, its helpers, and the reader of their output."""
    with contextlib.suppress(psutil.NoSuchProcess):  # it may have died by itself
        helpers = process.children(recursive=True)
        if how is not None:
            process.send_signal(how)
        # Erlang's helpers notice by themselves that they are alone, but take a second or two.
        for helper in psutil.wait_procs(helpers, timeout=3 if how is signal.SIGTERM else 0)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                helper.kill()
    try:
        process.wait(STOP_SECONDS)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)
    if reader := getattr(process, "_log_thread", None):
        reader.join(STOP_SECONDS)


class MariaDBServer(ServerProcess, MySQLDriver):  # type: ignore[misc]
    """A private MariaDB, with a user who may do anything.

    Options are mariadbd's, as an option file has them, and win over those given here:
    ``MariaDBServer("transaction-isolation=REPEATABLE-READ", "innodb_flush_log_at_trx_commit=2")``.
    """

    programs = ("mariadbd", "mariadb-install-db")
    package = "mariadb-server"

    def __init__(self, *options: str) -> None:
        super().__init__()
        self.options = [f"--{option.removeprefix('--')}" for option in options]
        self.password = secrets.token_hex(8)
        [self.port] = free_ports(1)

    def create_database(self, name: str) -> str:
        """Create an empty database, dropping one of that name first; returns its URL."""
        self.drop_database(name)
        self.execute(f"CREATE DATABASE `{name}`")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it is there, ending the connections which are still in it."""
        self.end_connections(name)
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def end_connections(self, name: str) -> None:
        """End the connections which are in a database."""
        for row in self.execute("SELECT id FROM information_schema.processlist WHERE db = %s", name):
            with contextlib.suppress(pymysql.err.OperationalError):  # gone in the meantime
                self.execute("KILL %s", *row)

    def url(self, database: str) -> str:
        """Return the URL under which SQLAlchemy reaches a database of this server."""
        return f"mysql+pymysql://{USER}:{self.password}@127.0.0.1:{self.port}/{database}?charset=utf8mb4"

    def execute(self, statement: str, *values: object) -> tuple[tuple[object, ...], ...]:
        """Execute one statement as the user who may do anything, and commit."""
        # It offers no TLS, and PyMySQL would read all certificates of the machine to be ready for it.
        # A node that has left its cluster admits SET and SHOW, and no COMMIT.
        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user=USER, password=self.password, ssl_disabled=True, autocommit=True
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall()

    def _prepare(self, directory: pathlib.Path) -> None:
        # A mariadbd that starts removes all temporary tables that it finds, those of its neighbours too.
        (directory / "tmp").mkdir()
        self.env |= {"TMPDIR": str(directory / "tmp")}
        self._places = ["--no-defaults", f"--user={getpass.getuser()}", f"--datadir={directory / 'data'}"]
        (directory / "grants.sql").write_text(
            f"CREATE USER IF NOT EXISTS {USER}@'127.0.0.1' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {USER}@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        self._run("mariadb-install-db", *self._places, "--skip-test-db", "--auth-root-authentication-method=normal")

    def _launch(self) -> psutil.Popen:
        return self._run(
            "mariadbd", *self._places, f"--init-file={self.tempdir}/grants.sql",
            "--socket=socket",  # within the data directory: an absolute path may be too long for a socket
            "--bind-address=127.0.0.1", f"--port={self.port}", "--skip-name-resolve",
            "--max-connections=500", "--max-connect-errors=1000000",  # drills break off many connections
            # All other settings are the server's defaults; these only save disk space and time.
            "--innodb-log-file-size=32M", "--innodb-buffer-pool-dump-at-shutdown=0",
            *self._options(), wait_for_line="ready for connections",
        )  # fmt: skip

    def _options(self) -> list[str]:
        """Return the options that win over those given here."""
        return self.options


class RabbitMQServer(ServerProcess, RabbitMQDriver):  # type: ignore[misc]
    """A private RabbitMQ; any number run side by side, as each has its own port mapper (epmd).

    Settings are lines of its configuration file: ``RabbitMQServer("channel_max = 100")``.
    """

    programs = ("rabbitmq-server", "epmd")
    package = "rabbitmq-server"
    _mapper: psutil.Popen | None = None

    def __init__(self, *settings: str) -> None:
        port, self._node_port, self._mapper_port = free_ports(3)
        self._settings = settings
        super().__init__(port=port, nodename=f"moorage-{port}@localhost", username=USER, password=secrets.token_hex(8))

    @property
    def url(self) -> str:
        """The URL of the virtual host that is there from the beginning."""
        return self._url("moorage")

    def add_vhost(self, name: str) -> str:
        """Create a virtual host that the user may do anything in; returns its URL."""
        [url] = self.add_vhosts([name])
        return url

    def add_vhosts(self, names: Sequence[str]) -> list[str]:
        """Create virtual hosts that the user may do anything in; returns their URLs."""
        # One call of the control program costs a second of a processor, for Erlang's start: so one call does it all.
        user, everything = f'<<"{USER}">>', ", ".join(['<<".*">>'] * 3)
        steps: list[str] = []
        for vhost in (f'<<"{name}">>' for name in names):
            steps.append(f"ok = rabbit_vhost:add({vhost}, {user})")
            steps.append(f"ok = rabbit_auth_backend_internal:set_permissions({user}, {vhost}, {everything}, {user})")
        self.evaluate(", ".join(steps))
        return [self._url(name) for name in names]

    def add_user(self, name: str, password: str, vhosts: Sequence[str]) -> None:
        """Create a user who may do anything in these virtual hosts, and nothing in others."""
        user, everything = f'<<"{name}">>', ", ".join(['<<".*">>'] * 3)
        steps = [f'rabbit_auth_backend_internal:add_user({user}, <<"{password}">>, {user})']
        steps += [
            f'rabbit_auth_backend_internal:set_permissions({user}, <<"{vhost}">>, {everything}, {user})'
            for vhost in vhosts
        ]
        self.evaluate(", ".join(steps))

    def evaluate(self, expressions: str) -> None:
        """Evaluate Erlang expressions in the server.

        :raises RuntimeError: the last one failed, or the server does not run.
        """
        self.rabbitmqctl(self.nodename, ["eval", expressions + "."])

    def url_of(self, vhost: str) -> str:
        """Return the URL of a virtual host, for the user who may do anything."""
        return self._url(vhost)

    def _url(self, vhost: str) -> str:
        return f"rabbit://{USER}:{self.password}@127.0.0.1:{self.port}/{vhost}"

    def _prepare(self, directory: pathlib.Path) -> None:
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"default_user = {USER}\ndefault_pass = {self.password}\ndefault_vhost = moorage\n"
            "disk_free_limit.absolute = 10MB\n"  # a nearly full disk at home must not hold up the publishers
            + "".join(f"{setting}\n" for setting in self._settings)
        )
        (directory / "plugins").write_text("[].\n")
        self.env |= {
            "HOME": str(directory),  # of the cookie, by which Erlang's nodes trust each other
            "RABBITMQ_CONF_ENV_FILE": f"{directory}/none",
            "RABBITMQ_CONFIG_FILE": f"{directory}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{directory}/none.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/plugins",
            "RABBITMQ_MNESIA_BASE": f"{directory}/data",
            "RABBITMQ_LOG_BASE": f"{directory}/log",
            "RABBITMQ_PID_FILE": f"{directory}/pid",
            "RABBITMQ_NODENAME": self.nodename,
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CTL_DIST_PORT_MIN": "0",  # any: several control programs may run at the same time
            "RABBITMQ_CTL_DIST_PORT_MAX": "0",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # The start script then becomes the server instead of watching over it, so that a signal meets the server.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _launch(self) -> psutil.Popen:
        self._start_mapper()
        return self._run("rabbitmq-server", wait_for_line="completed with .* plugins")

    def _start_mapper(self) -> None:
        # Erlang would start a port mapper that is never stopped; a running one is used instead.
        self._mapper = self._run(*MAPPER, wait_for_line=MAPPER_READY)

    def _end(self, how: signal.Signals) -> None:
        super()._end(how)
        mapper, self._mapper = self._mapper, None
        if mapper is not None:
            finish(mapper, signal.SIGKILL)
