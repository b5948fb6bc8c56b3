"""The simulation as a command: histories of today, replays in other processes, and breaks that it must find."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LONG = os.environ.get("DRILLS") == "long"
#: What fits beside everything else: some 1.5 s of a processor each.
HISTORIES = 16
TESTS = Path(__file__).parents[2]
_LINE = re.compile(r"^(\S+): trace (\w+), (.*)$", re.MULTILINE)


def simulate(*arguments: str, hash_seed: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command; ``hash_seed`` is that of the process which starts it."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    environment.pop("PYTHONHASHSEED", None)
    if hash_seed is not None:
        environment["PYTHONHASHSEED"] = hash_seed
    return subprocess.run(
        [sys.executable, "-m", "harness.simulation", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=280,
        check=False,
    )


def traces(said: str) -> dict[str, str]:
    """Return the trace of each history, with its figures, by its seed."""
    return {seed: f"{trace}, {figures}" for seed, trace, figures in _LINE.findall(said)}


def test_the_histories_of_today_keep_all_promises() -> None:
    ended = simulate("--histories", str(HISTORIES))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{HISTORIES} histories, 0 with a broken promise" in ended.stdout
    # They are no idle ones: callers get most of what they ask for.
    for done in ("build: done", "delete: done", "claim: done", "write: done", "ended active"):
        assert done in ended.stdout


def test_a_seed_has_the_same_history_in_every_process() -> None:
    many = simulate("--seed", "replay", "--histories", "2", "--jobs", "2", "--verbose", hash_seed="7")
    one = simulate("--seed", "replay/1", "--verbose")
    found = traces(many.stdout)
    assert len(found) == 2, many.stdout + many.stderr
    assert found["replay/0"] != found["replay/1"]
    assert traces(one.stdout) == {"replay/1": found["replay/1"]}


#: By break: the promise that is found broken, and the history of seed `break` in which it was first.
BREAKS = {"unguarded_claims": ("promise 1", 0), "hoped_for_groups": ("promise 6", 4), "unguarded_generations": ("", -1)}


@pytest.mark.parametrize("name", [*BREAKS] if LONG else [*BREAKS][:1])
def test_a_deliberate_break_is_found_and_shrunk_and_replays(name: str) -> None:
    promise, number = BREAKS[name]
    load = ("--load", f"support.simulation.breaks:{name}")
    found = simulate(*load, "--seed", "break", "--histories", str(number + 1), "--shrink", "12")
    assert found.returncode == 1, found.stdout + found.stderr
    assert f"breaks a promise: {promise}" in found.stdout
    shrunk = re.search(r"in short, (\d+) operations and (\d+) faults: (.*)", found.stdout)
    assert shrunk is not None
    assert int(shrunk[1]) < 50
    assert shrunk[3].startswith(promise)
    # It is told in words, a line for each operation that is left.
    assert len(re.findall(r"^\d+\. \S.*server \d", found.stdout, re.MULTILINE)) == int(shrunk[1])
