"""Test the effect of signals on the process of a service."""

import signal

import pytest
from support.processes.signalled_service import STOPS, running


@STOPS
def test_a_signal_stops_a_service_cleanly(number: signal.Signals) -> None:
    with running("Quiet") as service:
        service.until("Ready")
        service.send(number)
        assert service.ended() == 0
        assert service.lines == ["Ready", "Stopping", "stop", "Stopped"]


@STOPS
def test_a_signal_ends_a_service_that_waits_for_the_database(number: signal.Signals) -> None:
    with running("StoreAway") as service:
        service.until("Waiting for")
        service.send(number)
        assert service.ended() == 0
        assert service.lines[-1] == "Stopped before it was ready"


def test_a_start_is_repeated_until_the_database_is_available_and_is_logged_once() -> None:
    with running("StoreAway", away=5) as service:
        service.until("Ready")
        assert service.lines.count("start") == 5
        # After each failed start, the service is stopped.
        assert service.lines.count("stop") == 4
        assert [line for line in service.lines if line.startswith("Waiting")] == [
            "Waiting for what it starts with: The database of main cannot be reached: it is away."
        ]


def test_a_start_that_hangs_is_ended_by_force_after_the_time_for_a_stop() -> None:
    with running("StartHangs", stop_seconds=0.3) as service:
        service.until("start")
        service.send(signal.SIGTERM)
        assert service.ended() == 1
        assert service.lines[-1] == "Not stopped within 0.3 s, and ended by force; at work: MainThread"


def test_a_stop_that_hangs_is_ended_by_force_after_the_time_for_a_stop() -> None:
    with running("StopHangs", stop_seconds=2.0) as service:
        service.until("Ready")
        service.send(signal.SIGTERM)
        service.until("stop")
        assert service.ended() == 1


def test_a_stop_that_hangs_while_a_line_of_the_log_cannot_be_written_is_ended_by_force() -> None:
    with running("LogHangs", stop_seconds=0.5) as service:
        service.until("Ready")
        service.send(signal.SIGTERM)
        service.until("stop")
        assert service.ended() == 1


def test_threads_that_hang_after_the_stop_are_ended_by_force() -> None:
    with running("ExitHangs", stop_seconds=2.0) as service:
        service.until("Ready")
        service.send(signal.SIGTERM)
        service.until("Stopped")
        assert service.ended() == 1
        assert "ThreadPoolExecutor" in service.lines[-1]


def test_a_second_signal_ends_a_service_at_once() -> None:
    with running("StopHangs", stop_seconds=3600) as service:
        service.until("Ready")
        service.send(signal.SIGTERM)
        service.until("stop")
        service.send(signal.SIGINT)
        assert service.ended() == 1


@pytest.mark.parametrize(("service", "printed"), [("Quiet", []), ("Reloading", ["reload"])])
def test_sighup_reloads_a_service_that_can_reload_and_ends_no_service(service: str, printed: list[str]) -> None:
    with running(service) as process:
        process.until("Ready")
        process.send(signal.SIGHUP)
        for line in printed:
            process.until(line)
        process.send(signal.SIGTERM)
        assert process.ended() == 0
        assert process.lines == ["Ready", *printed, "Stopping", "stop", "Stopped"]


def test_a_process_has_ten_seconds_to_stop() -> None:
    from moorage.service.process import STOP_SECONDS

    assert STOP_SECONDS == 10
