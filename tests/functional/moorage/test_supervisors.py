"""Test what a service tells the supervisor of its process, and the units that start the services."""

import configparser
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.signalled_service import program, running

from moorage.cli.shell import Shell


class Systemd:
    """The socket of a supervisor with systemd's protocol, named in the environment."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(30)
        self._socket.bind(str(folder / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))

    def next(self) -> list[str]:
        return self._socket.recv(1000).decode().splitlines()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    supervisor = Systemd(tmp_path, monkeypatch)
    yield supervisor
    supervisor.close()


def test_a_service_notifies_the_supervisor_when_it_is_ready_reloads_and_stops(systemd: Systemd) -> None:
    with running("Reloading") as service:
        assert systemd.next() == ["READY=1"]
        service.send(signal.SIGHUP)
        reloading, since = systemd.next()
        assert (reloading, since.partition("=")[0]) == ("RELOADING=1", "MONOTONIC_USEC")
        assert systemd.next() == ["READY=1"]
        service.send(signal.SIGTERM)
        assert systemd.next() == ["STOPPING=1"]
        assert service.ended() == 0


def test_a_service_that_waits_for_the_database_is_not_ready(systemd: Systemd) -> None:
    with running("StoreAway") as service:
        service.until("Waiting for")
        service.send(signal.SIGTERM)
        assert service.ended() == 0
    systemd._socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.next()


def test_watchdog_notifications_end_when_a_watched_thread_has_died(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with program("run(WithThread())") as service:
        while systemd.next() != ["WATCHDOG=1"]:
            pass
        service.send(signal.SIGHUP)
        service.until("These threads have died")
        assert service.lines[-1].endswith("watched")


def test_the_units_start_existing_commands_with_existing_options() -> None:
    shell = Shell()
    for unit in (Path(__file__).parents[3] / "etc/systemd").iterdir():
        parsed = configparser.ConfigParser(strict=False, interpolation=None)
        parsed.optionxform = str  # type: ignore[assignment,method-assign]
        parsed.read(unit)
        words = parsed["Service"]["ExecStart"].split()
        assert words[0] == "/opt/moorage/bin/moorage"
        given = [word.replace("%i", "cell1") for word in words[1:] if not word.startswith("$")]
        command, name, rest = shell.command_manager.find_command(given)
        command(shell, None, name).get_parser(name).parse_args(rest)
        assert (parsed["Service"]["Type"], parsed["Install"]["WantedBy"]) == ("notify", "multi-user.target")
