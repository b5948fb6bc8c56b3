"""Private MariaDB and RabbitMQ servers that can be stopped, killed and started again on what they had stored.

They run from Debian's packages, on free ports of 127.0.0.1, in a temporary directory, as whoever starts them. pifpaf
knows how to run such programs for a while; what it lacks is added here: a TCP port with users and grants, ports, node name
and port mapper of RabbitMQ's own, and a second start on the same data.
"""

import atexit
import contextlib
import getpass
import itertools
import pathlib
import secrets
import shutil
import signal
import socket
import threading
from types import TracebackType
from typing import ClassVar, Self

import psutil
import pymysql
from pifpaf import drivers
from pifpaf.drivers.mysql import MySQLDriver
from pifpaf.drivers.rabbitmq import RabbitMQDriver

STOP_SECONDS = 60  # a clean stop takes one to three; this is for a machine that is busy with something else
USER = "moorage"
# Ports below the range that Linux hands out to connections: a stopped server's port is still free when it returns.
PORTS = range(15000, 32000)
# An ordinary user's PATH has no sbin, and Debian's wrapper of the same name in it insists on being root.
PLACES = ["/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/libexec", "/usr/local/sbin"]


class ServersMissing(Exception):
    """A server's program is not on this machine; the message names the Debian package to install."""


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; all are held until the last is found, so that no two are the same."""
    with contextlib.ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            port = PORTS.start + secrets.randbelow(len(PORTS))
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
        return found


class _Server(drivers.Driver):  # type: ignore[misc]  # pifpaf has no types
    """One server process, started as often as wanted on one data directory, which goes with ``close``."""

    programs: ClassVar[tuple[str, ...]]
    package: ClassVar[str]

    _set_up = False
    _main: psutil.Popen | None = None

    def start(self) -> None:
        """Start the server and wait until it takes connections: on new data the first time, then on the same data.

        :raises ServersMissing: when the server is not installed
        :raises RuntimeError: with the server's output, when it does not come up
        """
        if self._main is not None:
            raise RuntimeError(f"{self.package} is running already")
        missing = [program for program in self.programs if self.find_executable(program, PLACES) is None]
        if missing:
            raise ServersMissing(f"{missing[0]} is not here: install the Debian package {self.package}")
        if not self._set_up:
            self.setUp()
            self._set_up = True
            atexit.register(self.close)
        self._main = self._launch()

    def stop(self) -> None:
        """Stop the server in good order; its data stay."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server by SIGKILL, as a crash would; its data stay as they are at that moment."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop the server, if it runs, and remove its data; it cannot be started again."""
        atexit.unregister(self.close)
        try:
            self._end(signal.SIGKILL)  # the data go as well, so there is nothing to keep in order
        finally:
            if self._set_up:
                self._set_up = False
                self.cleanUp()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _launch(self) -> psutil.Popen:
        raise NotImplementedError

    def _end(self, how: signal.Signals) -> None:
        """End the server's process, and wait until it is gone."""
        process, self._main = self._main, None
        if process is not None:
            _finish(process, how)

    def _run(self, *command: str, wait_for_line: str | None = None) -> psutil.Popen:
        # A child of the main thread dies with this process, also where nobody can clean up any more. (The kernel asks for the
        # thread that started it: one started by a passing thread would die with that one, so there only atexit helps.)
        prefix = []
        if threading.current_thread() is threading.main_thread() and shutil.which("setpriv"):
            prefix = ["setpriv", "--pdeathsig", "KILL", "--"]
        process, _ = self._exec([*prefix, *command], path=PLACES, env=self.env, wait_for_line=wait_for_line)
        return process

    def _kill(self, parent: psutil.Popen) -> None:
        # pifpaf's clean-up looks for a process group by number, which may be somebody else's if the process is long gone.
        if parent.returncode is None:
            _finish(parent, signal.SIGKILL)

    def putenv(self, key: str, value: str, raw: bool = False) -> None:
        """Keep a variable for the server alone: two of them would fight over the environment of this process."""
        self.env[key if raw else f"{self.env_prefix}_{key}"] = value


def _finish(process: psutil.Popen, how: signal.Signals) -> None:
    """Send a signal, then wait for the end, also of the server's own helpers and of the thread that reads the output."""
    with contextlib.suppress(psutil.NoSuchProcess):  # it may have died by itself
        helpers = process.children(recursive=True)
        process.send_signal(how)
        # Erlang's helpers notice by themselves that they are alone, but take a second or two.
        psutil.wait_procs(helpers, timeout=3 if how is signal.SIGTERM else 0)
        for helper in helpers:
            with contextlib.suppress(psutil.NoSuchProcess):
                helper.kill()
    try:
        process.wait(STOP_SECONDS)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)
    reader = getattr(process, "_log_thread", None)
    if reader is not None:
        reader.join(STOP_SECONDS)


class MariaDBServer(_Server, MySQLDriver):  # type: ignore[misc]
    """A MariaDB of one's own, with a user who may do anything.

    Options are mariadbd's, as an option file has them, and win over those given here:
    ``MariaDBServer("transaction-isolation=REPEATABLE-READ", "innodb_flush_log_at_trx_commit=2")``.
    """

    programs = ("mariadbd", "mariadb-install-db")
    package = "mariadb-server"

    def __init__(self, *options: str) -> None:
        super().__init__()
        self.options = options
        self.password = secrets.token_hex(8)
        [self.port] = _free_ports(1)

    def create_database(self, name: str) -> str:
        """Create an empty database, dropping one of that name first; returns its URL."""
        self.drop_database(name)
        self._execute(f"CREATE DATABASE `{name}`")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it is there, ending the connections which are still in it."""
        for (connection,) in self._execute("SELECT id FROM information_schema.processlist WHERE db = %s", name):
            with contextlib.suppress(pymysql.err.OperationalError):  # gone in the meantime
                self._execute("KILL %s", connection)
        self._execute(f"DROP DATABASE IF EXISTS `{name}`")

    def url(self, database: str) -> str:
        """The URL under which SQLAlchemy reaches a database of this server."""
        return f"mysql+pymysql://{USER}:{self.password}@127.0.0.1:{self.port}/{database}?charset=utf8mb4"

    def _execute(self, statement: str, *values: object) -> tuple[tuple[object, ...], ...]:
        connection = pymysql.connect(host="127.0.0.1", port=self.port, user=USER, password=self.password)
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall()

    def _setUp(self) -> None:
        drivers.Driver._setUp(self)
        directory = pathlib.Path(self.tempdir)
        (directory / "tmp").mkdir()
        (directory / "grants.sql").write_text(
            f"CREATE USER IF NOT EXISTS {USER}@'127.0.0.1' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {USER}@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        self._run("mariadb-install-db", *self._places(), "--skip-test-db", "--auth-root-authentication-method=normal")

    def _launch(self) -> psutil.Popen:
        return self._run(
            "mariadbd", *self._places(),
            f"--init-file={self.tempdir}/grants.sql",
            "--socket=socket",  # within the data directory: an absolute path may be too long for a socket
            "--bind-address=127.0.0.1", f"--port={self.port}", "--skip-name-resolve",
            "--max-connections=500", "--max-connect-errors=1000000",  # drills break off many connections
            "--lock-wait-timeout=60",  # waits for a table's definition: the default is a day
            "--character-set-server=utf8mb4", "--skip-log-bin",
            "--innodb-log-file-size=32M", "--innodb-buffer-pool-dump-at-shutdown=0", "--innodb-buffer-pool-load-at-startup=0",
            *(f"--{option.removeprefix('--')}" for option in self.options),
            wait_for_line="ready for connections",
        )  # fmt: skip

    def _places(self) -> list[str]:
        return [
            "--no-defaults", f"--user={getpass.getuser()}",
            f"--datadir={self.tempdir}/data", f"--tmpdir={self.tempdir}/tmp",
        ]  # fmt: skip


class RabbitMQServer(_Server, RabbitMQDriver):  # type: ignore[misc]
    """A RabbitMQ of one's own; any number run side by side, as each has its own port mapper."""

    programs = ("rabbitmq-server", "epmd")
    package = "rabbitmq-server"

    _mapper: psutil.Popen | None = None

    def __init__(self) -> None:
        port, self._mapper_port, self._node_port, self._control_port = _free_ports(4)
        super().__init__(port=port, nodename=f"moorage-{port}@localhost", username=USER, password=secrets.token_hex(8))
        self._names = itertools.count(1)

    @property
    def url(self) -> str:
        """The URL under which oslo.messaging reaches the first virtual host."""
        return self._url("moorage")

    def add_vhost(self, name: str) -> str:
        """Create a virtual host that the user may do anything in; returns its URL."""
        # One call of the control program costs as much as a start of Erlang, so everything is done in one.
        self.rabbitmqctl(self.nodename, ["eval", (
            f'ok = rabbit_vhost:add(<<"{name}">>, <<"{USER}">>), '
            f'rabbit_auth_backend_internal:set_permissions(<<"{USER}">>, <<"{name}">>, '
            f'<<".*">>, <<".*">>, <<".*">>, <<"{USER}">>).'
        )])  # fmt: skip
        return self._url(name)

    def _url(self, vhost: str) -> str:
        return f"rabbit://{USER}:{self.password}@127.0.0.1:{self.port}/{vhost}"

    def _setUp(self) -> None:
        drivers.Driver._setUp(self)
        directory = pathlib.Path(self.tempdir)
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"default_user = {USER}\ndefault_pass = {self.password}\ndefault_vhost = moorage\n"
            # A development machine's nearly full disk must not stop the publishers.
            "disk_free_limit.absolute = 10MB\n"
        )
        (directory / "enabled_plugins").write_text("[].\n")
        self.env |= {
            "HOME": self.tempdir,  # of the cookie, by which nodes trust each other
            "RABBITMQ_CONF_ENV_FILE": f"{self.tempdir}/none",
            "RABBITMQ_CONFIG_FILE": f"{self.tempdir}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{self.tempdir}/none.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{self.tempdir}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{self.tempdir}/mnesia",
            "RABBITMQ_LOG_BASE": f"{self.tempdir}/log",
            "RABBITMQ_PID_FILE": f"{self.tempdir}/pid",
            "RABBITMQ_NODENAME": self.nodename,
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_CTL_DIST_PORT_MIN": str(self._control_port),
            "RABBITMQ_CTL_DIST_PORT_MAX": str(self._control_port),
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # Makes the start script become the server instead of watching over it, so that a signal meets the server.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _launch(self) -> psutil.Popen:
        # Erlang would start a port mapper that outlives everybody; one that is already there is used instead.
        self._mapper = self._run("epmd", "-d", "-d", wait_for_line="entering the main select")
        return self._run("rabbitmq-server", wait_for_line="completed with .* plugins")

    def _end(self, how: signal.Signals) -> None:
        super()._end(how)
        mapper, self._mapper = self._mapper, None
        if mapper is not None:
            _finish(mapper, signal.SIGKILL)
