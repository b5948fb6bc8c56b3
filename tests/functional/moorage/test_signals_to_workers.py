"""Test the effect of signals on the workers of a service."""

import os
import signal

import pytest
from support.processes.signalled_service import STOPS, Process, program


def started(process: Process, lines: int = 2) -> dict[str, int]:
    """Wait for the lines of workers that have started, and return their process ids by name."""
    while len(found := [line.split() for line in process.lines if line.startswith("start ")]) < lines:
        process.lines.append(process.next())
    return {name: int(pid) for _, name, pid in found}


def workers_that(process: Process, what: str) -> list[str]:
    return sorted(line.split()[1] for line in process.lines if line.startswith(f"{what} "))


@STOPS
def test_a_signal_to_the_parent_stops_all_workers_cleanly(number: signal.Signals) -> None:
    with program("run_workers(Worker, 3)") as service:
        assert sorted(started(service, 3)) == ["one-1", "one-2", "one-3"]
        service.send(number)
        assert service.ended() == 0
        assert workers_that(service, "stop") == ["one-1", "one-2", "one-3"]


def test_a_signal_to_all_processes_at_once_stops_the_workers_cleanly() -> None:
    # As a terminal's Ctrl-C, and as systemd by default.
    with program("run_workers(Worker)") as service:
        started(service)
        os.killpg(service.process.pid, signal.SIGINT)
        assert service.ended() == 0
        assert workers_that(service, "stop") == ["one-1", "one-2"]


def test_a_second_signal_ends_the_workers_at_once() -> None:
    with program("run_workers(StopsNever, stop_seconds=3600)") as service:
        started(service)
        service.send(signal.SIGTERM)
        while len(workers_that(service, "stop")) < 2:
            service.lines.append(service.next())
        service.send(signal.SIGTERM)
        assert service.ended() == 1


def test_sighup_is_passed_on_to_all_workers() -> None:
    with program("run_workers(Worker)") as service:
        started(service)
        service.send(signal.SIGHUP)
        while len(workers_that(service, "reload")) < 2:
            service.lines.append(service.next())
        service.send(signal.SIGTERM)
        assert service.ended() == 0
        assert workers_that(service, "reload") == ["one-1", "one-2"]


# An ignored signal stays ignored in the programs that a process starts.
@pytest.mark.parametrize("earlier", ["SIG_DFL", "SIG_IGN"])
def test_a_worker_that_dies_is_started_again_under_its_name(earlier: str) -> None:
    ending = f"signal.signal(signal.SIGCHLD, signal.{earlier}); workers._START_SECONDS = 0.0; run_workers(Worker)"
    with program(f"import signal; {ending}") as service:
        first = started(service)
        os.kill(first["one-2"], signal.SIGKILL)
        again = started(service, 3)
        assert again["one-1"] == first["one-1"]
        assert again["one-2"] != first["one-2"]
        service.send(signal.SIGTERM)
        assert service.ended() == 0
        assert workers_that(service, "stop") == ["one-1", "one-2"]
        assert "Worker one-2 has ended with status 9, and is started again" in service.lines


def test_a_worker_with_a_dead_thread_is_started_again_because_the_others_notify_the_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with program("workers._START_SECONDS = 0.0; run_workers(LosesItsThreadAsTheSecond)") as service:
        first = started(service)
        service.send(signal.SIGHUP)
        again = started(service, 3)
        assert again["one-1"] == first["one-1"]
        assert again["one-2"] != first["one-2"]
        assert [line.split()[-1] for line in service.lines if line.startswith("These threads")] == ["watched"]
        service.send(signal.SIGTERM)
        assert service.ended() == 0


def test_a_worker_that_fails_at_its_start_ends_the_service_with_its_status() -> None:
    with program("run_workers(FailsAsTheSecond)") as service:
        assert service.ended() == 3
        assert "Worker one-2 has ended at its start with status 3; the others are stopped" in service.lines
        # The other worker may not have been ready yet.
        assert workers_that(service, "stop") in ([], ["one-1"])


@pytest.mark.parametrize("forks", [1, 2], ids=["at the start", "in place of another one"])
def test_a_worker_that_the_machine_refuses_ends_the_service_after_the_others_have_stopped(forks: int) -> None:
    refusing = f"""
forks = [os.fork] * {forks}

def fork():
    if not forks:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return forks.pop()()

os.fork, workers._START_SECONDS = fork, 0.0
run_workers(Worker)
"""
    with program(refusing) as service:
        first = started(service, forks)
        if forks == 2:
            os.kill(first["one-2"], signal.SIGKILL)
        assert service.ended() == 1
        refusal = "Worker one-2 cannot be started: [Errno 11] Resource temporarily unavailable; the others are stopped"
        assert refusal in service.lines
        assert workers_that(service, "stop") == ["one-1"]


def test_workers_stop_cleanly_when_their_parent_is_killed() -> None:
    with program("run_workers(Worker)") as service:
        started(service)
        service.send(signal.SIGKILL)
        # The output ends when all workers have ended.
        assert service.ended() == -signal.SIGKILL
        assert workers_that(service, "stop") == ["one-1", "one-2"]


def test_a_single_worker_is_the_process_itself() -> None:
    with program("run_workers(Worker, 1)") as service:
        service.until("Ready")
        assert service.lines[0] == f"start one {service.process.pid}"
        service.send(signal.SIGTERM)
        assert service.ended() == 0
