"""Private servers for the tests that need one; the figures that tests measure, and the time of each folder of tests."""

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

# The speed at which Hypothesis draws values depends on the other work of the machine.
hypothesis.settings.register_profile("moorage", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("moorage")

HERE = Path(__file__).parent
NUMBERS = itertools.count(1)
#: Virtual hosts that are created at once. After a restart, the broker has to recover each of them.
VHOSTS = 5
#: These modules take a quarter of the time of all tests outside `tests/external`.
LONGEST = ("test_operation_table.py", "test_store_machine.py")
#: Tests of whole clouds of processes, which wait for more than half of their time.
CLOUDS = HERE / "external"
#: These modules take a quarter of that time. The tests of the first share expensive fixtures, and once a worker has
#: begun it, no other worker takes tests from it.
LONGEST_CLOUDS = ("test_killed_processes.py", "test_servers_killed_under_load.py")

#: A file to which each run of tests appends its failures. `.ci/run` prints it at the end of its output, of which
#: readers may get the end only. The variable is removed: a test may run other tests, on a copy broken on purpose.
FILE_OF_FAILURES = os.environ.pop("FILE_OF_FAILURES", None)
LINES_OF_FAILURE = 15


def pytest_configure(config: pytest.Config) -> None:
    """Make SIGTERM end the session as Ctrl-C does, so that the servers' data are removed then as well."""
    # As services do: with Python's default of 700 objects, garbage collections take a twelfth of the time of all tests.
    gc.set_threshold(20_000)
    signal.signal(signal.SIGTERM, _interrupt)
    hung_tests.WATCH.start()


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, object, object]:
    """Describe a failure while no other thread runs.

    CPython 3.11 counts the depth of a syntax tree under construction once for all threads. If another thread formats a
    traceback for the log meanwhile, the construction fails with a SystemError, which ends the worker and its processes.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        return (yield)
    finally:
        sys.setswitchinterval(interval)


@pytest.fixture(autouse=True)
def log_handlers_of_this_test() -> Iterator[None]:
    """Remove the log handlers that a test has added, and restore the log level.

    The handlers write to the captured output of that test only: afterwards, each log line of any thread would become a
    "Logging error" of about twenty lines. The command line enables all log levels, so each later test would keep all
    lines of all libraries.
    """
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.setLevel(level)
    for handler in root.handlers[:]:
        # The handlers of the service, and those of the command line, which never removes them. pytest's were there
        # before.
        if handler not in before:
            root.removeHandler(handler)
            handler.close()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDBServer]:
    """One MariaDB for the whole session; a test that stops or kills it must start it again."""
    # Written to the file at each commit, synced once a second: this survives a SIGKILL, and is fast on slow disks.
    yield from private_servers.run(lambda: MariaDBServer("innodb_flush_log_at_trx_commit=2"), in_memory=True)


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """The certificate and the port with which the session's servers are reached over TLS."""
    return issue(tmp_path_factory.mktemp("tls"), "127.0.0.1")


@pytest.fixture(scope="session")
def mariadb_over_tls(tls: Tls) -> Iterator[MariaDBServer]:
    """A second MariaDB that offers TLS: each connection then uses TLS, and takes six times as long to open."""
    yield from private_servers.run(
        lambda: MariaDBServer("innodb_flush_log_at_trx_commit=2", *tls.mariadb_options), in_memory=True
    )


@pytest.fixture(scope="session")
def rabbitmq(tls: Tls) -> Iterator[RabbitMQServer]:
    """One RabbitMQ for the whole session; a test that stops or kills it must start it again."""
    yield from private_servers.run(lambda: RabbitMQServer(*tls.rabbitmq_settings), in_memory=True)


@pytest.fixture
def mariadb_url(mariadb: MariaDBServer) -> Iterator[str]:
    """The URL of an empty database, dropped afterwards."""
    name = f"test_{next(NUMBERS)}"
    yield mariadb.create_database(name)
    mariadb.drop_database(name)


@pytest.fixture(scope="session")
def migrated_mariadb(mariadb: MariaDBServer) -> OnMariaDB:
    """Return the session's set of migrated, empty databases on MariaDB; a test may request one of them."""
    return OnMariaDB(mariadb)


@pytest.fixture(scope="session")
def fresh_vhosts(rabbitmq: RabbitMQServer) -> Iterator[str]:
    """The URLs of unused virtual hosts: several are created by one call of the control program."""

    def urls() -> Iterator[str]:
        while True:
            yield from rabbitmq.add_vhosts([f"test_{next(NUMBERS)}" for _ in range(VHOSTS)])

    return urls()


@pytest.fixture
def rabbitmq_url(fresh_vhosts: Iterator[str]) -> str:
    """The URL of a fresh virtual host."""
    return next(fresh_vhosts)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a server, so that ``-m 'not servers'`` deselects them; distribute the longest tests."""
    for item in items:
        if {"mariadb", "mariadb_over_tls", "rabbitmq"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("servers")
    items[:] = _dealt_out(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def pytest_collection_finish() -> None:
    """Exclude all tests from garbage collections, each of which would otherwise visit every test."""
    gc.collect()
    gc.freeze()


def _dealt_out(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return tests in an order in which each worker begins with some of the longest ones.

    If a long test began last, it would run alone while the other workers had nothing to do. If a run contains clouds of
    processes and other tests, half of the workers begin with clouds, which wait while the other workers use the
    processors. xdist's work stealing gives each worker the same number of successive tests, and takes tests for other
    workers from the end of its list.
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
    """Return the tests with clouds of processes by file, the longest first: tests of one file may share a cloud."""
    files: dict[Path, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        if item.path.is_relative_to(CLOUDS):
            files[item.path].append(item)
    return [files[path] for path in sorted(files, key=lambda path: (path.name not in LONGEST_CLOUDS, path))]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Append the names of the tests that failed, and the last lines of their tracebacks, to the file of failures."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if FILE_OF_FAILURES is None or terminal is None:
        return
    with Path(FILE_OF_FAILURES).open("a", encoding="utf-8") as failures:
        for report in [*terminal.stats.get("failed", ()), *terminal.stats.get("error", ())]:
            lines = [line[:200] for line in report.longreprtext.splitlines()[-LINES_OF_FAILURE:]]
            failures.write("\n".join([f"--- {report.nodeid} ({report.when})", *lines, ""]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests have measured, and the time of each folder, including fixtures."""
    seconds: dict[str, float] = collections.defaultdict(float)
    tests: dict[str, set[str]] = collections.defaultdict(set)
    measured: list[str] = []
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            file = terminalreporter.config.rootpath / report.location[0]
            # A test may be located elsewhere: Hypothesis generates the tests of state machines.
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
