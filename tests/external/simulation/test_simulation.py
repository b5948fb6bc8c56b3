"""The command of the simulation: histories of the day, replays in other processes, and breaks that it must find."""

import datetime
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.breaks import loading

LONG = os.environ.get("DRILLS") == "long"
HISTORIES = 1000
#: Seconds: in `make test`, the simulation only gets the processor time that no other process needs.
LONGEST = 3600
TESTS = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(LONGEST)
_LINE = re.compile(r"^(\S+): trace (\w+), (.*)$", re.MULTILINE)


def simulate(
    *arguments: str, hash_seed: str | None = None, break_: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command with a hash seed in its environment, and with a deliberate break, if they are given."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    environment.pop("PYTHONHASHSEED", None)
    if hash_seed is not None:
        environment["PYTHONHASHSEED"] = hash_seed
    if break_ is not None:
        environment[loading.VARIABLE] = break_
        arguments = ("--load", "support.breaks.loading:load", *arguments)
    return subprocess.run(
        [sys.executable, "-m", "harness.simulation", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=LONGEST,
        check=False,
    )


def traces(output: str) -> dict[str, str]:
    """Return the trace of each history, with its figures, by its seed."""
    return {seed: f"{trace}, {figures}" for seed, trace, figures in _LINE.findall(output)}


def test_histories_keep_all_promises_and_are_the_same_in_every_process() -> None:
    # In CI, all runs have the same histories; elsewhere they have those of the day.
    seeds = ("--seed", "ci") if os.environ.get("CI") == "true" else ()
    before = datetime.date.today().isoformat()
    many = simulate(*seeds, "--histories", str(HISTORIES), "--jobs", "2", "--verbose", hash_seed="7")
    if not seeds:
        assert any(many.stdout.startswith(f"seed {day}: ") for day in (before, datetime.date.today().isoformat()))
    assert many.returncode == 0, many.stdout + many.stderr
    assert not many.stderr
    assert f"{HISTORIES} histories, 0 with a broken promise" in many.stdout
    # Many requests must succeed, so that the histories are not empty.
    for done in ("build: done", "delete: done", "claim: done", "write: done", "attach: done", "ended active"):
        assert done in many.stdout
    found = traces(many.stdout)
    assert len(set(found.values())) == HISTORIES, many.stdout
    [last] = [seed for seed in found if seed.endswith(f"/{HISTORIES - 1}")]
    one = simulate("--seed", last, "--verbose")
    assert traces(one.stdout) == {last: found[last]}, one.stdout + one.stderr


def test_a_process_whose_service_cannot_start_is_started_again_and_leaves_nothing_on_the_bus() -> None:
    ended = simulate("--histories", "1", "--load", "support.processes.failing_starts:load")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 histories, 0 with a broken promise" in ended.stdout


#: The promise that each break violates. The first break is found soonest.
BREAKS = {"ignored_generations": "promise 7", "unguarded_claims": "promise 1", "hoped_for_groups": "promise 6"}
#: The number of histories within which each break is found. They have one seed, so this does not depend on the date.
WITHIN = 40


@pytest.mark.parametrize("name", [*BREAKS] if LONG else [*BREAKS][:1])
def test_a_deliberate_break_is_found_shrunk_and_described_in_words(name: str) -> None:
    shrink = "50" if LONG else "4"
    ended = simulate("--seed", "break", "--histories", str(WITHIN), "--shrink", shrink, break_=name)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"breaks a promise: {BREAKS[name]}" in ended.stdout
    shrunk = re.search(r"in short, (\d+) operations and (\d+) faults: (.*)", ended.stdout)
    assert shrunk is not None, ended.stdout
    assert int(shrunk[1]) < 50
    assert shrunk[3].startswith(BREAKS[name])
    # There is one line for each operation of the shortened story.
    assert len(re.findall(r"^\d+\. \S.*server \d", ended.stdout, re.MULTILINE)) == int(shrunk[1])
    assert "again: python -m harness.simulation" in ended.stdout
