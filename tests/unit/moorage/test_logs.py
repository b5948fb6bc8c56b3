"""Test that the service, the request and the attempt are bound to a thread and are on each line of its log."""

import argparse
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import oslo_context.context
import pytest
from oslo_log import versionutils
from support.moorage.root_logger import root_logger  # noqa: F401 - a fixture

from moorage import context, errors, logs
from moorage.cli.serving import Serving
from moorage.cli.shell import Shell, main
from moorage.config import options

LOG = logging.getLogger("moorage.test_logs")


pytestmark = pytest.mark.usefixtures("root_logger")


@pytest.fixture(autouse=True)
def own_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the context that a Placement of other tests left in this thread: its request id would be on each line."""
    monkeypatch.setattr(oslo_context.context, "_request_store", threading.local())


def start_log(directory: Path, service: str, **settings: object) -> Path:
    file = directory / "log"
    logs.setup(options.new({"DEFAULT": {"log_file": str(file), **settings}}), service)
    return file


def test_nothing_is_bound_at_first() -> None:
    assert context.current() == context.Context(request_id=None, attempt_id=None)


def test_bound_fields_replace_outer_ones_and_the_others_stay_until_exit() -> None:
    with context.bound(request_id="r-1"):
        with context.bound(attempt_id="a-1") as inner:
            assert inner == context.Context(request_id="r-1", attempt_id="a-1")
            with context.bound(request_id="r-2"):
                assert context.current().request_id == "r-2"
            assert context.current() == inner
        assert context.current() == context.Context(request_id="r-1")
    assert context.current() == context.Context()


def test_the_context_is_restored_after_a_failure() -> None:
    with pytest.raises(KeyError), context.bound(request_id="r-1"):
        raise KeyError
    assert context.current() == context.Context()


def test_a_new_thread_begins_with_nothing() -> None:
    seen: list[context.Context] = []
    with context.bound(request_id="r-1"):
        thread = threading.Thread(target=lambda: seen.append(context.current()))
        thread.start()
        thread.join()
    assert seen == [context.Context()]


def test_each_line_shows_service_request_and_attempt(tmp_path: Path) -> None:
    file = start_log(tmp_path, "scheduler")
    LOG.warning("idle")
    with context.bound(request_id="r-1"):
        LOG.warning("asked")
        with context.bound(attempt_id="a-1"):
            LOG.warning("tried")
    idle, asked, tried = file.read_text().splitlines()
    assert idle.endswith("[scheduler - -] idle")
    assert asked.endswith("[scheduler r-1 -] asked")
    assert tried.endswith("[scheduler r-1 a-1] tried")


def test_an_error_that_the_message_contains_is_not_repeated(tmp_path: Path) -> None:
    file = start_log(tmp_path, "scheduler")
    for message in ("Refused: %s", "Refused"):
        try:
            raise errors.ConfigurationError(reason="it rains")
        except errors.MoorageError as fault:
            LOG.error(message, *([fault] if "%s" in message else []))
    named, unnamed = file.read_text().splitlines()

    assert named.endswith("[scheduler - -] Refused: The configuration is wrong: it rains.")
    assert unnamed.endswith(
        "[scheduler - -] Refused: moorage.errors.ConfigurationError: The configuration is wrong: it rains."
    )


def test_each_line_of_a_traceback_shows_service_request_and_attempt(tmp_path: Path) -> None:
    file = start_log(tmp_path, "scheduler")
    with context.bound(request_id="r-1"):
        try:
            raise ValueError("broken")
        except ValueError:
            LOG.exception("failed")
    lines = file.read_text().splitlines()
    assert len(lines) > 3
    assert all("[scheduler r-1 -]" in line for line in lines)


def test_a_name_with_line_breaks_and_control_characters_begins_no_line_of_its_own(tmp_path: Path) -> None:
    file = start_log(tmp_path, "scheduler")
    name = "host1\n2026-11-30 12:00:00.000 1 INFO forged\r\x1b[2J\u2028end"
    LOG.warning("%s is down", name)
    try:
        raise errors.HostNotFound(name=name)
    except errors.HostNotFound as fault:
        LOG.warning("left out", exc_info=fault)
        LOG.warning("left out")
    text = file.read_bytes().decode()
    assert not {"\r", "\x1b", "\u2028"} & set(text)
    lines = text.split("\n")[:-1]
    assert lines[0].endswith("[scheduler - -] host1")
    assert lines[1] == r"    2026-11-30 12:00:00.000 1 INFO forged\r\x1b[2J\u2028end is down"
    assert all("[scheduler - -]" in line or line.startswith("    ") for line in lines)


def test_setting_up_twice_writes_each_line_once_under_the_later_name(tmp_path: Path) -> None:
    start_log(tmp_path, "scheduler")
    file = start_log(tmp_path, "conductor")
    LOG.warning("once")
    with context.bound(service="scheduler"):
        LOG.warning("as another")
    first, second = file.read_text().splitlines()
    assert first.endswith("[conductor - -] once")
    assert second.endswith("[scheduler - -] as another")


def test_a_configuration_knows_its_service(tmp_path: Path) -> None:
    one, other = options.new(), options.new()
    logs.setup(one, "scheduler")
    logs.setup(other, "conductor")
    assert (logs.service_name(one), logs.service_name(other)) == ("scheduler", "conductor")


def test_the_warning_of_the_amqp_library_at_every_stop_is_not_logged(tmp_path: Path) -> None:
    file = start_log(tmp_path, "scheduler")
    library = logging.getLogger("amqp")
    library.warning("Received method (60, 30) during closing channel 1. This method will be ignored")
    library.error("a fault of its own")
    assert [line.rpartition("] ")[2] for line in file.read_text().splitlines()] == ["a fault of its own"]


LIBRARY = "oslo.messaging._drivers.impl_rabbit"
UNREACHABLE = "[%(connection_id)s] AMQP server on %(hostname)s:%(port)s is unreachable: %(err_str)s."


def test_a_line_about_an_unreachable_broker_is_written_once_a_minute_with_the_number_of_those_left_out() -> None:
    now, lines = [0.0], list[str]()
    repeated = logs._Repeated(lambda: now[0])

    def log(message: str, *arguments: object, level: int = logging.ERROR, name: str = LIBRARY) -> None:
        record = logging.LogRecord(name, level, "", 0, message, arguments, None)
        if repeated.filter(record):
            lines.append(record.getMessage())

    def refused(connection: int, host: str = "one") -> None:
        fields = {"connection_id": connection, "hostname": host, "port": 5672, "err_str": OSError("refused")}
        log(UNREACHABLE, fields)

    for connection in (1, 2, 3):
        refused(connection)
    refused(1, "two")
    log("Queue %s was not bound", "a")
    log("Queue %s was not bound", "b")
    assert len(lines) == 4
    now[0] = 59.9
    refused(1)
    for _ in range(2):
        log("each time", level=logging.DEBUG)
        log("Ready", level=logging.INFO, name="moorage.db.database")
    assert lines[4:] == ["each time", "Ready"] * 2
    now[0] = 60.0
    refused(2)
    assert lines[8:] == [
        "[2] AMQP server on one:5672 is unreachable: refused. (3 lines like this were left out before)"
    ]
    # A new interruption is logged at once.
    log("[%(connection_id)s] Reconnected to AMQP server on %(hostname)s", {"connection_id": 1, "hostname": "one"})
    refused(1)
    refused(1)
    assert len(lines) == 11
    # The number of lines that were left out in the former one is not lost.
    log("[%(connection_id)s] Reconnected to AMQP server on %(hostname)s", {"connection_id": 1, "hostname": "one"})
    refused(1)
    assert lines[12] == "[1] AMQP server on one:5672 is unreachable: refused. (1 lines like this were left out before)"


def test_a_line_that_cannot_be_formatted_does_not_fail_its_caller() -> None:
    record = logging.LogRecord(LIBRARY, logging.ERROR, "", 0, "%d queues", ("two",), None)
    assert logs._Repeated().filter(record)


@pytest.mark.parametrize(
    "name", [LIBRARY, "moorage.bus.rabbit.connection", "moorage.db.database", "moorage.service.process.tasks"]
)
def test_the_log_of_a_service_does_not_repeat_the_lines_of_an_outage(tmp_path: Path, name: str) -> None:
    file = start_log(tmp_path, "compute")
    for connection in range(5):
        fields = {"connection_id": connection, "hostname": str(tmp_path), "port": 5672, "err_str": "refused"}
        logging.getLogger(name).error(UNREACHABLE, fields)
    assert file.read_text().count("is unreachable") == 1


def test_different_faults_of_one_task_are_each_logged_with_their_traceback(tmp_path: Path) -> None:
    file = start_log(tmp_path, "scheduler")
    for fault in (KeyError("one"), ValueError("two"), ValueError("two")):
        logging.getLogger("moorage.service.process.tasks").error("%s: an unexpected fault", tmp_path, exc_info=fault)
    lines = file.read_text()
    assert lines.count("an unexpected fault") == 2
    assert "ValueError: two" in lines


def test_a_line_that_is_logged_while_another_one_is_compared_does_not_stop_the_log() -> None:
    repeated = logs._Repeated()

    def passes(message: str, *arguments: object) -> bool:
        return repeated.filter(logging.LogRecord("moorage.db.database", logging.ERROR, "", 0, message, arguments, None))

    class Logging:
        """Logs as the garbage collector may cause it: it can run within any expression."""

        def __str__(self) -> str:
            return str(passes("a connection was dropped"))

    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(passes("away: %s", Logging())), daemon=True)
    thread.start()
    thread.join(10.0)
    assert found == [True]


def test_a_broker_that_cannot_declare_several_queues_is_logged_for_each_of_them() -> None:
    repeated = logs._Repeated()
    message = "Internal amqp error (541) during queue declare. Queue: [%(queue)s], error message: [%(err_str)s]"
    passed = []
    for queue in ("scheduler", "placement", "placement"):
        fields = {"sleep_time": 2, "queue": queue, "err_str": "INTERNAL_ERROR"}
        passed.append(repeated.filter(logging.LogRecord(LIBRARY, logging.ERROR, "", 0, message, (fields,), None)))
    assert passed == [True, True, False]


def test_lines_in_json_have_service_request_and_attempt(tmp_path: Path) -> None:
    file = start_log(tmp_path, "scheduler", use_json=True)
    with context.bound(request_id="r-1", attempt_id="a-1"):
        LOG.warning("lost %s", "it")
    LOG.warning("nobody's")
    first, second = [json.loads(line) for line in file.read_text().splitlines()]
    assert (first["message"], first["levelname"]) == ("lost it", "WARNING")
    assert first["extra"] == {"service": "scheduler", "request_id": "r-1", "attempt_id": "a-1"}
    assert second["extra"] == {"service": "scheduler", "request_id": "-", "attempt_id": "-"}


def test_a_log_file_named_before_the_command_of_a_service_gets_the_services_log(tmp_path: Path) -> None:
    (tmp_path / "conf").write_text(
        f"[DEFAULT]\ntransport_url = rabbit://127.0.0.1:1/\n[database]\nconnection = sqlite:///{tmp_path}/empty\n"
    )
    words = ["--config-file", "conf", "--log-file", "log", "conductor", "--name", "one"]
    # The service ends because there are no tables.
    ended = subprocess.run([sys.executable, "-m", "moorage.cli.shell", *words], cwd=tmp_path, check=False)
    assert ended.returncode == 1
    logged = (tmp_path / "log").read_text()
    assert "[conductor.one - -] The conductor schema is at revision none" in logged


DEPRECATED = 'Deprecated: Option "logdir" from group "DEFAULT" is deprecated.'


@pytest.fixture
def deprecated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file with a deprecated option, whose warning the library has not logged yet."""
    monkeypatch.setattr(versionutils, "_deprecated_messages_sent", {})
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\nlogdir = {tmp_path}\nlog_file = log\ntransport_url = inproc://x/\n")
    return file


class Quick(Serving):
    """A service that ends once it has a log."""

    def take_action(self, _parsed_args: argparse.Namespace) -> int:
        logs.setup(self.conf, "quick")
        return 0


def run_quick(file: Path) -> None:
    shell = Shell()
    shell.options = argparse.Namespace(config_file=str(file), log_file=None)
    Quick(shell, None, "quick").run(argparse.Namespace())


def run_placement_api(file: Path) -> None:
    # It ends because there is no database.
    assert main(["--config-file", str(file), "placement-api", "--port", "0"]) == 1


@pytest.mark.parametrize("run", [run_quick, run_placement_api])
def test_a_deprecated_option_is_reported_once_in_the_log_that_the_configuration_names(
    deprecated: Path, capsys: pytest.CaptureFixture[str], run: Callable[[Path], None]
) -> None:
    run(deprecated)
    assert DEPRECATED not in capsys.readouterr().err
    [line] = [line for line in (deprecated.parent / "log").read_text().splitlines() if DEPRECATED in line]
    assert " WARNING oslo_config.cfg [" in line


def test_a_deprecated_option_is_reported_on_the_log_of_a_logging_configuration(deprecated: Path) -> None:
    log, file = deprecated.parent / "configured.log", deprecated.parent / "logging.conf"
    file.write_text(
        "[loggers]\nkeys = root\n[handlers]\nkeys = file\n[formatters]\nkeys =\n"
        "[logger_root]\nlevel = INFO\nhandlers = file\n"
        f"[handler_file]\nclass = FileHandler\nargs = ('{log}',)\n"
    )
    deprecated.write_text(f"{deprecated.read_text()}log_config_append = {file}\n")
    with logs.held_back():
        logs.setup(options.new(files=[deprecated]), "scheduler")
    assert DEPRECATED in log.read_text()


def test_a_variable_that_sets_no_option_is_reported_on_the_log_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OS_RPC__THRAEDS", "4")
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\nlog_file = {tmp_path / 'log'}\n")
    with logs.held_back():
        logs.setup(options.new(files=[file]), "scheduler")
    assert "OS_RPC__THRAEDS" not in capsys.readouterr().err
    assert "OS_RPC__THRAEDS, but [rpc] has no option thraeds" in (tmp_path / "log").read_text()


def test_a_deprecated_option_is_reported_although_the_log_cannot_be_set_up(
    deprecated: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deprecated.write_text(f"[DEFAULT]\nlogdir = {deprecated.parent / 'none'}\nlog_file = log\n")
    with logs.held_back():
        conf = options.new(files=[deprecated])
        assert caplog.text == ""
        with pytest.raises(errors.ConfigurationError):
            logs.setup(conf, "scheduler")
        assert caplog.text == ""
    assert DEPRECATED in caplog.text


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("log_file", "/nonexistent/moorage.log", "/nonexistent/moorage.log"),
        ("log_config_append", "/nonexistent/logging.conf", "/nonexistent/logging.conf"),
        ("default_log_levels", "moorage", "Unknown level"),
        ("logging_context_format_string", "%(levle)s %(message)s", "levle"),
        ("logging_exception_prefix", "%(levle)s ", "levle"),
        ("logging_debug_format_suffix", "%(lino)d", "lino"),
    ],
)
def test_a_log_that_cannot_be_set_up_is_an_error_of_the_configuration_that_names_the_file(
    option: str, value: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\n{option} = {value}\n")
    before = list(logging.getLogger().handlers)
    with pytest.raises(errors.ConfigurationError) as refused:
        logs.setup(options.new(files=[file]), "scheduler.one")
    assert str(file) in str(refused.value)
    assert said in str(refused.value)
    assert logging.getLogger().handlers == before
