"""The demo, by its command, on the embedded default: in a process of its own where what it prints is looked at."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from moorage.cli.shell import main

Done = subprocess.CompletedProcess[str]


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Return a function that runs a command in this process, which has imported all that it needs."""

    def run(*words: str) -> Done:
        try:
            status: object = main(words)
        except SystemExit as end:
            status = end.code
        assert isinstance(status, int)
        return Done(words, status, *capsys.readouterr())

    return run


def moorage(*words: str) -> Done:
    return subprocess.run(
        [sys.executable, "-m", "moorage.cli.shell", *words], text=True, capture_output=True, check=False, timeout=180
    )


def demo(*words: str, run: Callable[..., Done] = moorage) -> list[dict[str, object]]:
    done = run("demo", "--hosts", "6", "--cells", "2", "--instances", "12", *words, "-f", "json")
    assert done.returncode == 0, done.stderr
    assert "over-committed providers: 0; leaked allocations: 0" in done.stderr
    rows = json.loads(done.stdout)
    assert isinstance(rows, list)
    return rows


def test_json_is_all_there_is_on_standard_output_with_the_promised_keys() -> None:
    rows = demo("--fail-rate", "0.5", "--seed", "7")

    assert len(rows) == 12
    for row in rows:
        assert list(row) == ["instance", "state", "cell", "host", "attempts", "reason"]
        assert row["state"] in ("active", "error")
        assert (row["host"] is None) == (row["state"] == "error")
        assert (row["reason"] is None) == (row["state"] == "active")
        attempts = row["attempts"]
        assert isinstance(attempts, list)
        assert 1 <= len(attempts) <= 3
        assert len(set(attempts)) == len(attempts)
        assert all(str(host).startswith(str(row["cell"])) for host in attempts)
        if row["state"] == "active":
            assert row["host"] == attempts[-1]


def test_the_same_seed_gives_the_same_placements_and_another_seed_others(here: Callable[..., Done]) -> None:
    first = demo("--fail-rate", "0.4", "--seed", "11", run=here)

    assert demo("--fail-rate", "0.4", "--seed", "11") == first, "another process places otherwise"
    assert demo("--fail-rate", "0.4", "--seed", "12", run=here) != first


def test_a_cloud_that_is_too_small_ends_in_errors_that_say_why_and_in_a_clean_audit(here: Callable[..., Done]) -> None:
    rows = demo("--fail-rate", "0", "--seed", "1", "--instances", "60", run=here)

    assert [row["state"] for row in rows].count("active") == 6 * 8
    refused = [row for row in rows if row["state"] == "error"]
    assert len(refused) == 12
    assert all("0 of 6 hosts: 6 short of VCPU, nearest" in str(row["reason"]) for row in refused)


def test_when_every_spawn_fails_each_instance_names_each_attempt_and_nothing_is_held(here: Callable[..., Done]) -> None:
    rows = demo("--fail-rate", "1", "--seed", "1", run=here)

    for row in rows:
        assert row["state"] == "error"
        assert len(row["attempts"]) == 3  # type: ignore[arg-type]
        assert all(host in str(row["reason"]) for host in row["attempts"])  # type: ignore[attr-defined]


def test_bad_numbers_are_refused_before_anything_starts(here: Callable[..., Done]) -> None:
    for words in (["--hosts", "0"], ["--fail-rate", "1.5"], ["--seed", "x"], ["--host", "3"]):
        done = here("demo", *words)
        assert done.returncode == 2
        assert not done.stdout


@pytest.mark.parametrize(
    ("command", "own"),
    [
        ("select", ["schedulers", "clients", "per_request", "occupancy", "groups", "nested", "claims_per_s"]),
        ("build", ["clients", "per_order", "builds_per_s"]),
    ],
)
def test_the_bench_prints_the_promised_figures_and_a_clean_audit(command: str, own: list[str]) -> None:
    done = moorage("bench", command, "--hosts", "20", "--clients", "2", "--seconds", "2", "-f", "json")

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert list(figures) == [
        "hosts", *own, "calls_per_s", "p50_ms", "p99_ms", "conflicts", "refused", "cpu_ms", "echo_calls_per_s",
        "echo_p50_ms", "ratio_to_echo", "rss_mb", "overcommitted", "leaked",
    ]  # fmt: skip
    assert figures[own[-1]] > 0
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert figures["echo_calls_per_s"] is None
    assert (figures["refused"], figures["overcommitted"], figures["leaked"]) == ({}, 0, 0)


def test_the_bench_refuses_a_bus_between_processes_without_such_a_database() -> None:
    done = moorage("bench", "select", "--transport-url", "rabbit://127.0.0.1:1/")
    assert done.returncode == 1
    assert "give --transport-url and --database-url together" in done.stderr


def test_a_good_run_says_nothing_but_its_progress_and_its_audit() -> None:
    done = moorage("demo", "--hosts", "4", "--instances", "8", "--fail-rate", "0.5", "--seed", "7", "-f", "json")
    *progress, verdict = done.stderr.strip().splitlines()
    assert verdict == "over-committed providers: 0; leaked allocations: 0"
    assert all(line.startswith("building") for line in progress)
    assert any(len(row["attempts"]) > 1 for row in json.loads(done.stdout))
