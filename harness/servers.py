"""Private MariaDB and RabbitMQ servers that can be stopped, killed and started again on their data.

They run from Debian's packages, on free ports of 127.0.0.1, in a temporary directory, as the current user. pifpaf can
run such programs; this module adds a TCP port, users and grants, a port mapper and node names for each RabbitMQ, and
starting again on the same data.
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
STOP_SECONDS = 60  # a clean stop takes one or two; the rest is for a busy machine
# Below the range that Linux uses for connections: a stopped server's port is still free when the server starts again.
PORTS = range(15000, 32000)
# An ordinary user's PATH has no sbin, and Debian's wrapper on that PATH lets only root start RabbitMQ.
PLACES = ["/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/libexec", "/usr/local/sbin"]

#: Erlang's port mapper in the foreground, and its output when it is ready.
MAPPER = ("epmd", "-d", "-d")
MAPPER_READY = "entering the main select"


class ServersMissing(Exception):
    """A server's program is not installed; the message names the Debian package to install."""


def free_ports(count: int) -> list[int]:
    """Return unused ports outside the ephemeral range; all stay bound until the last is found, so that all differ."""
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
    """A server process that can be started again on its data directory, which ``close`` removes."""

    programs: ClassVar[tuple[str, ...]]
    package: ClassVar[str]
    #: Folders whose programs take precedence over those of the machine.
    places: Sequence[str] = ()
    _prepared = False
    _main: psutil.Popen | None = None

    def start(self) -> None:
        """Start the server and wait until it accepts connections: first on new data, later on the same data.

        :raises ServersMissing: the server is not installed
        :raises RuntimeError: the server does not start; the message contains its output
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
        """The parts that can be killed and started again one by one."""
        return (self,)

    def pids_by_name(self, name: str) -> dict[str, int]:
        """Return the ids of all processes of the server by name; the names begin with ``name``."""
        return {name: self.pid}

    def stop(self) -> None:
        """Stop the server cleanly and keep its data."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash would; its data stay as they are at that moment."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Kill the server, if it runs, and remove its data; it cannot be started again."""
        atexit.unregister(self.close)
        self._end(signal.SIGKILL)  # the data are removed too, so no clean stop is needed
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
        """Set a variable for this server only: in this process's environment, two servers would overwrite it."""
        self.env[key if raw else f"{self.env_prefix}_{key}"] = value

    def _setUp(self) -> None:  # noqa: N802  # the name is the fixture's
        drivers.Driver._setUp(self)  # noqa: SLF001  # skips the method of the pifpaf driver, which starts a server
        self._prepare(pathlib.Path(self.tempdir))

    def _prepare(self, directory: pathlib.Path) -> None:
        """Create the content of the server's directory, once."""
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
        # pifpaf would look for a process group by number, which may already belong to another process.
        if parent.returncode is None:
            finish(parent, signal.SIGKILL)


def finish(process: psutil.Popen, how: signal.Signals | None) -> None:
    """Send a signal, if any, and wait for the end of the server, its helpers, and the reader of their output."""
    with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended by itself
        helpers = process.children(recursive=True)
        if how is not None:
            process.send_signal(how)
        # Erlang's helpers end by themselves when the server is gone, but that takes a second or two.
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
    """A private MariaDB, with a user who has all privileges.

    ``options`` are those of mariadbd, as in an option file; they override the options in this class:
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
        """Create an empty database, after dropping any of that name; returns its URL."""
        self.drop_database(name)
        self.execute(f"CREATE DATABASE `{name}`")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, and end its connections."""
        self.end_connections(name)
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def end_connections(self, name: str) -> None:
        """End the connections to a database."""
        for row in self.execute("SELECT id FROM information_schema.processlist WHERE db = %s", name):
            with contextlib.suppress(pymysql.err.OperationalError):  # ended in the meantime
                self.execute("KILL %s", *row)

    def url(self, database: str) -> str:
        """Return the URL under which SQLAlchemy reaches a database of this server."""
        return f"mysql+pymysql://{USER}:{self.password}@127.0.0.1:{self.port}/{database}?charset=utf8mb4"

    def execute(self, statement: str, *values: object) -> tuple[tuple[object, ...], ...]:
        """Execute one statement as the user with all privileges, and commit."""
        # The server offers no TLS, and PyMySQL would prepare for TLS by reading all certificates of the machine.
        # Autocommit, because a node that has left its cluster accepts SET and SHOW but not COMMIT.
        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user=USER, password=self.password, ssl_disabled=True, autocommit=True
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall()

    def _prepare(self, directory: pathlib.Path) -> None:
        # When mariadbd starts, it removes all temporary tables in its folder, including those of other servers.
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
            "--socket=socket",  # relative to the data directory: an absolute path may be too long for a socket
            "--bind-address=127.0.0.1", f"--port={self.port}", "--skip-name-resolve",
            "--max-connections=500", "--max-connect-errors=1000000",  # drills break many connections
            # All other settings are the server's defaults; these two save disk space and time.
            "--innodb-log-file-size=32M", "--innodb-buffer-pool-dump-at-shutdown=0",
            *self._options(), wait_for_line="ready for connections",
        )  # fmt: skip

    def _options(self) -> list[str]:
        """Return the options that override the ones given here."""
        return self.options


class RabbitMQServer(ServerProcess, RabbitMQDriver):  # type: ignore[misc]
    """A private RabbitMQ; several can run on one machine, because each has its own port mapper (epmd).

    Settings are lines of its configuration file: ``RabbitMQServer("channel_max = 100")``.
    """

    programs = ("rabbitmq-server", "epmd")
    package = "rabbitmq-server"
    _mapper: psutil.Popen | None = None

    def __init__(self, *settings: str) -> None:
        port, self._node_port, self._mapper_port = free_ports(3)
        self._settings = settings
        self._cookie = secrets.token_hex(10).upper()
        super().__init__(port=port, nodename=f"moorage-{port}@localhost", username=USER, password=secrets.token_hex(8))

    @property
    def url(self) -> str:
        """The URL of the default virtual host."""
        return self.url_of("moorage")

    def add_vhost(self, name: str) -> str:
        """Create a virtual host on which the user has all permissions; returns its URL."""
        [url] = self.add_vhosts([name])
        return url

    def add_vhosts(self, names: Sequence[str]) -> list[str]:
        """Create virtual hosts on which the user has all permissions; returns their URLs."""
        # One call of the control program costs a second of a processor, to start Erlang. So a single call does all the
        # work.
        user, everything = f'<<"{USER}">>', ", ".join(['<<".*">>'] * 3)
        steps: list[str] = []
        for vhost in (f'<<"{name}">>' for name in names):
            steps.append(f"ok = rabbit_vhost:add({vhost}, {user})")
            steps.append(f"ok = rabbit_auth_backend_internal:set_permissions({user}, {vhost}, {everything}, {user})")
        self.evaluate(", ".join(steps))
        return [self.url_of(name) for name in names]

    def add_user(self, name: str, password: str, vhosts: Sequence[str]) -> None:
        """Create a user who has all permissions on these virtual hosts, and none on others."""
        user, everything = f'<<"{name}">>', ", ".join(['<<".*">>'] * 3)
        steps = [f'rabbit_auth_backend_internal:add_user({user}, <<"{password}">>, {user})']
        steps += [
            f'rabbit_auth_backend_internal:set_permissions({user}, <<"{vhost}">>, {everything}, {user})'
            for vhost in vhosts
        ]
        self.evaluate(", ".join(steps))

    def evaluate(self, expressions: str) -> None:
        """Evaluate Erlang expressions in the server.

        :raises RuntimeError: the last expression failed, or the server does not run.
        """
        self.rabbitmqctl(self.nodename, ["eval", expressions + "."])

    def url_of(self, vhost: str) -> str:
        """Return the URL of a virtual host, for the user with all permissions."""
        return f"rabbit://{USER}:{self.password}@127.0.0.1:{self.port}/{vhost}"

    def _prepare(self, directory: pathlib.Path) -> None:
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"default_user = {USER}\ndefault_pass = {self.password}\ndefault_vhost = moorage\n"
            "disk_free_limit.absolute = 10MB\n"  # a nearly full disk must not block the publishers
            + "".join(f"{setting}\n" for setting in self._settings)
        )
        (directory / "plugins").write_text("[].\n")
        # The server first starts another Erlang. If that takes long, both would create the cookie by which nodes
        # authenticate each other, and one would find it before it is accessible by its owner only.
        cookie = directory / ".erlang.cookie"
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)
        self.env |= {
            "HOME": str(directory),  # where the cookie is
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
            "RABBITMQ_CTL_DIST_PORT_MIN": "0",  # any port, because several control programs may run at the same time
            "RABBITMQ_CTL_DIST_PORT_MAX": "0",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # The start script then execs the server instead of supervising it, so that a signal reaches the server.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _launch(self) -> psutil.Popen:
        self._start_mapper()
        return self._run("rabbitmq-server", wait_for_line="completed with .* plugins")

    def _start_mapper(self) -> None:
        # Otherwise Erlang would start a port mapper that never stops; it uses one that runs already.
        self._mapper = self._run(*MAPPER, wait_for_line=MAPPER_READY)

    def _end(self, how: signal.Signals) -> None:
        super()._end(how)
        mapper, self._mapper = self._mapper, None
        if mapper is not None:
            finish(mapper, signal.SIGKILL)
