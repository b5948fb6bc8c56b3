"""Private servers for the tests that need one; what tests measure, and how long each folder of them took."""

import collections
import gc
import itertools
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import hypothesis
import pytest
from support.databases.migrated import OnMariaDB
from support.processes import private_servers
from support.processes.tls import Tls, issue
from support.pytest_plugins import hung_tests
from support.pytest_plugins.hung_tests import pytest_runtest_protocol  # noqa: F401 - a hook of every test
from support.pytest_plugins.left_threads import no_thread_is_left  # noqa: F401 - a fixture of every test
from support.scheduler.installed_packages import install  # noqa: F401 - a fixture

from harness.servers import MariaDBServer, RabbitMQServer

# How fast values are drawn depends on what else the machine does.
hypothesis.settings.register_profile("moorage", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("moorage")

HERE = Path(__file__).parent
NUMBERS = itertools.count(1)
#: Virtual hosts that are created at once. Each of them is one more to recover when the broker is started again.
VHOSTS = 5
#: A quarter of the time of all tests outside of `tests/external`.
LONGEST = ("test_operation_table.py", "test_store_machine.py")
#: Whole clouds of processes, which wait for more than half of their time.
CLOUDS = HERE / "external"
#: A quarter of theirs. What the tests of the first share is dear, and no other worker takes it from one that began it.
LONGEST_CLOUDS = ("test_killed_processes.py", "test_servers_killed_under_load.py")


def pytest_configure(config: pytest.Config) -> None:
    """Make SIGTERM end the session as Ctrl-C does, so that the servers' data are removed then as well."""
    # As services do: with Python's default of 700 objects the collections take a twelfth of the time of all tests.
    gc.set_threshold(20_000)
    signal.signal(signal.SIGTERM, _interrupt)
    hung_tests.WATCH.start()


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, object, object]:
    """Describe a failure without another thread in between.

    CPython 3.11 counts the depth of a syntax tree under construction once for all threads. A thread that formats a
    traceback for the log meanwhile makes it fail with a SystemError, which takes down the worker and what it started.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        return (yield)
    finally:
        sys.setswitchinterval(interval)


@pytest.fixture(autouse=True)
def log_handlers_of_this_test() -> Iterator[None]:
    """Take off the handlers of the log that a test has set up, and its level.

    They write to what was captured for it alone: every later line of any thread would come out as a "Logging error" of
    some twenty lines. The command line has everything logged, and each later test would keep all lines of all
    libraries.
    """
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.setLevel(level)
    for handler in root.handlers[:]:
        # The service's own, and those of the command line, which knows of no end. pytest's were there before.
        if handler not in before:
            root.removeHandler(handler)
            handler.close()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDBServer]:
    """One MariaDB for the whole session; whoever stops or kills it starts it again."""
    # Written to the file at each commit, synced once a second: enough to outlive a SIGKILL, and quick on slow disks.
    yield from private_servers.run(lambda: MariaDBServer("innodb_flush_log_at_trx_commit=2"))


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """How the session's servers are reached over TLS."""
    return issue(tmp_path_factory.mktemp("tls"), "127.0.0.1")


@pytest.fixture(scope="session")
def mariadb_over_tls(tls: Tls) -> Iterator[MariaDBServer]:
    """One more MariaDB, which offers TLS: each connection uses it then, and takes six times as long to make."""
    yield from private_servers.run(lambda: MariaDBServer("innodb_flush_log_at_trx_commit=2", *tls.mariadb_options))


@pytest.fixture(scope="session")
def rabbitmq(tls: Tls) -> Iterator[RabbitMQServer]:
    """One RabbitMQ for the whole session; whoever stops or kills it starts it again."""
    yield from private_servers.run(lambda: RabbitMQServer(*tls.rabbitmq_settings))


@pytest.fixture
def mariadb_url(mariadb: MariaDBServer) -> Iterator[str]:
    """The URL of an empty database, dropped afterwards."""
    name = f"test_{next(NUMBERS)}"
    yield mariadb.create_database(name)
    mariadb.drop_database(name)


@pytest.fixture(scope="session")
def migrated_mariadb(mariadb: MariaDBServer) -> OnMariaDB:
    """Return the session's set of migrated, empty databases on MariaDB; a test may ask for one of them."""
    return OnMariaDB(mariadb)


@pytest.fixture(scope="session")
def fresh_vhosts(rabbitmq: RabbitMQServer) -> Iterator[str]:
    """The URLs of virtual hosts that nobody has used: some at once, for one call of the control program."""

    def urls() -> Iterator[str]:
        while True:
            yield from rabbitmq.add_vhosts([f"test_{next(NUMBERS)}" for _ in range(VHOSTS)])

    return urls()


@pytest.fixture
def rabbitmq_url(fresh_vhosts: Iterator[str]) -> str:
    """The URL of a fresh virtual host."""
    return next(fresh_vhosts)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for a server, so that ``-m 'not servers'`` leaves it out; deal out what takes long."""
    for item in items:
        if {"mariadb", "mariadb_over_tls", "rabbitmq"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("servers")
    items[:] = _dealt_out(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def pytest_collection_finish() -> None:
    """Keep all tests out of the collections of garbage, each of which would look at every one of them."""
    gc.collect()
    gc.freeze()


def _dealt_out(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return tests in an order in which each worker begins with some of what takes longest.

    Begun last, it would go on alone while the other workers had nothing left to do. Where clouds of processes are in
    the same run as other tests, half of the workers begin with clouds, which wait while the other workers have the
    processors. xdist's work stealing gives each worker as many successive tests, and takes from its end what another
    one is to do.
    """
    heads: list[list[pytest.Item]] = [[] for _ in range(workers)]
    with_clouds, without = heads[: max(1, workers // 2)], heads[workers // 2 :]
    for number, of_a_file in enumerate(_files_of_clouds(items)):
        with_clouds[number % len(with_clouds)] += of_a_file
    for number, item in enumerate(item for item in items if item.path.name in LONGEST):
        without[number % len(without)].append(item)
    headed = {id(item) for head in heads for item in head}
    others = [item for item in items if id(item) not in headed]
    dealt: list[pytest.Item] = []
    for number, head in enumerate(heads):
        size = (len(items) - len(dealt)) // (workers - number)
        count = max(0, size - len(head))
        dealt += [*head, *others[:count]]
        del others[:count]
    return [*dealt, *others]


def _files_of_clouds(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """Return the tests with clouds of processes by file, the longest first: those of a file may share a cloud."""
    files: dict[Path, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        if item.path.is_relative_to(CLOUDS):
            files[item.path].append(item)
    return [files[path] for path in sorted(files, key=lambda path: (path.name not in LONGEST_CLOUDS, path))]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have measured, and how long each folder took, what its fixtures took included."""
    seconds: dict[str, float] = collections.defaultdict(float)
    tests: dict[str, set[str]] = collections.defaultdict(set)
    measured: list[str] = []
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            file = terminalreporter.config.rootpath / report.location[0]
            # A test may stand elsewhere: those that Hypothesis makes of a state machine do.
            folder = file.relative_to(HERE).parts[0] if file.is_relative_to(HERE) else "elsewhere"
            seconds[folder] += report.duration
            tests[folder].add(report.nodeid)
            measured += [str(value) for name, value in report.user_properties if name == "measured"]
    if measured:
        terminalreporter.section("measured")
        for value in dict.fromkeys(measured):
            terminalreporter.write_line(value)
    if seconds:
        terminalreporter.section("time of each folder")
        for folder in sorted(seconds):
            terminalreporter.write_line(f"{folder:12} {seconds[folder]:8.1f} s  {len(tests[folder]):5} tests")
