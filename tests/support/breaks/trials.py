"""Tries a break: whether its tests fail, and how soon the simulation finds it."""

import os
import re
import subprocess
import sys
from pathlib import Path

from support.breaks.description import Break
from support.breaks.loading import VARIABLE

_TESTS = Path(__file__).parents[2]
#: The name of the test without its parameters and without the error.
_FAILED = re.compile(r"^FAILED ([^\s\[]+)", re.MULTILINE)
_ENDED = re.compile(r"^\d+ (passed|failed)\b.* in ", re.MULTILINE)
_FOUND = re.compile(r"^\S+/(\d+) breaks a promise: (.*)$", re.MULTILINE)


def fails_tests(one: Break) -> bool:
    """Return whether each test of a break fails with it, for at least one of its parameters.

    :raises AssertionError: the tests were not run.
    """
    marked = "servers" if one.needs_servers else "not servers"
    arguments = ["-m", "pytest", "-p", "support.breaks.loading", "-q", "-rf", "-m", marked, "-p", "no:cacheprovider"]
    ended = _run(one, [*arguments, *one.tests])
    assert _ENDED.search(ended.stdout), f"{one.name}:\n{ended.stdout}{ended.stderr}"
    return set(one.tests) <= set(_FAILED.findall(ended.stdout))


def found_by_simulation(one: Break, seed: str, histories: int, jobs: int = 1) -> tuple[int, str] | None:
    """Return the number of the first history with a broken promise, and the description; null if there is none.

    :raises AssertionError: the simulation itself has failed.
    """
    load = ["-m", "harness.simulation", "--load", "support.breaks.loading:load", "--as-it-is"]
    ended = _run(one, [*load, "--seed", seed, "--histories", str(histories), "--jobs", str(jobs)])
    found = _FOUND.search(ended.stdout)
    assert (ended.returncode == 1) == bool(found), f"{one.name}:\n{ended.stdout}{ended.stderr}"
    return None if found is None else (int(found[1]) + 1, found[2])


def _run(one: Break, arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, VARIABLE: one.name, "PYTHONPATH": str(_TESTS)}
    # Variables of an outer run of pytest would make the inner run a worker of it.
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=_TESTS.parent, check=False
    )
