"""Test the commands `moorage demo` and `moorage bench` without servers."""

import json
import re
from pathlib import Path

import pytest
from support.cli.commands import Run
from support.processes.forked_process import run_forked

#: Removes what Python writes around the texts of a list.
LIST_SIGNS = str.maketrans("", "", "[]'")


@pytest.fixture
def forked(tmp_path: Path) -> Run:
    """Run a command in another process, whose whole output is known."""
    return lambda *words: run_forked(words, tmp_path)


def demo(run: Run, *words: str) -> list[dict[str, object]]:
    done = run("demo", "--hosts", "6", "--cells", "2", "--instances", "12", *words, "-f", "json")
    assert done.returncode == 0, done.stderr
    assert "over-committed providers: 0; leaked allocations: 0" in done.stderr
    rows = json.loads(done.stdout)
    assert isinstance(rows, list)
    return rows


def test_standard_output_has_only_json_with_the_documented_keys(forked: Run) -> None:
    rows = demo(forked, "--fail-rate", "0.5", "--seed", "7")

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


def test_a_seed_has_the_same_placements_in_each_process_and_another_seed_has_others(here: Run, forked: Run) -> None:
    first = demo(here, "--fail-rate", "0.4", "--seed", "11")

    assert demo(forked, "--fail-rate", "0.4", "--seed", "11") == first, "the placements in another process differ"
    assert demo(here, "--fail-rate", "0.4", "--seed", "12") != first


def test_the_page_shows_the_first_rows_of_the_demo(here: Run) -> None:
    root = Path(__file__).parents[3]
    [words] = re.findall(r"moorage demo (.*)", (root / "Makefile").read_text())
    printed = re.findall(r"^\| [0-9a-f-]{36} \|.*", (root / "README.md").read_text(), re.MULTILINE)
    rows = demo(here, *words.split(), "--instances", str(len(printed)))

    names = ("instance", "state", "cell", "host")
    wanted = [[*(row[name] for name in names), str(row["attempts"]).translate(LIST_SIGNS), ""] for row in rows]
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in printed] == wanted


def test_instances_that_do_not_fit_end_in_errors_with_the_reason(here: Run) -> None:
    rows = demo(here, "--fail-rate", "0", "--seed", "1", "--instances", "60")

    assert [row["state"] for row in rows].count("active") == 6 * 8
    refused = [row for row in rows if row["state"] == "error"]
    assert len(refused) == 12
    assert all("0 of 6 hosts: 6 short of VCPU, nearest" in str(row["reason"]) for row in refused)


def test_if_all_spawns_fail_each_instance_has_all_attempts_and_no_allocations_are_left(
    here: Run,
) -> None:
    rows = demo(here, "--fail-rate", "1", "--seed", "1")

    for row in rows:
        assert row["state"] == "error"
        assert len(row["attempts"]) == 3  # type: ignore[arg-type]
        assert all(host in str(row["reason"]) for host in row["attempts"])  # type: ignore[attr-defined]


def test_invalid_numbers_are_refused_before_the_start(here: Run) -> None:
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
def test_the_bench_prints_the_documented_figures_and_a_clean_audit(forked: Run, command: str, own: list[str]) -> None:
    done = forked("bench", command, "--hosts", "20", "--clients", "2", "--seconds", "2", "-f", "json")

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


def test_a_successful_demo_without_a_terminal_prints_only_its_audit_beside_its_table(forked: Run) -> None:
    done = forked("demo", "--hosts", "4", "--instances", "8", "--fail-rate", "0.5", "--seed", "7", "-f", "json")
    assert done.stderr == "over-committed providers: 0; leaked allocations: 0\n"
    assert any(len(row["attempts"]) > 1 for row in json.loads(done.stdout))
