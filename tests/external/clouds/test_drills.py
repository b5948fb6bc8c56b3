"""Drills on real servers: services are processes, which are paused and cut off, and nothing is lost.

In `make test`, the month of a small cloud lasts for a few seconds; with DRILLS=long in the environment it lasts for
seven minutes, and its growth is judged, and a cloud is upgraded from the former release.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes import private_servers
from support.processes.command import moorage

LONG = os.environ.get("DRILLS") == "long"
#: The commit of the former release.
FORMER = "1c26f2c15ddf91fc53b2ebc3e1f5c5ff0b2de73e"


def run(
    drill: str, seconds: int, seed: str, transport_url: str, database_url: str, *more: str
) -> tuple[dict[str, Any], str]:
    """Run a drill, and return its figures and its log; fail if it has findings."""
    urls = ("--transport-url", transport_url, "--database-url", database_url)
    words = ("drill", "run", drill, *urls, *more, "--seed", seed, "--seconds", str(seconds), "-f", "json")
    done = moorage(*words, timeout=seconds + 270)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_orders_whose_messages_are_late_lost_and_doubled_end_and_leave_nothing(
    rabbitmq_url: str, mariadb_url: str
) -> None:
    figures, log = run("late", 8, "1", rabbitmq_url, mariadb_url)

    assert figures["faults"] > 0
    assert figures["builds"] > 0
    assert figures["findings"] == []
    assert "loses its connections to the broker" in log


def test_a_month_of_a_small_cloud_leaves_nothing_and_what_it_is_judged_by_is_measured(
    rabbitmq_url: str, mariadb_url: str
) -> None:
    figures, log = run("age", 420 if LONG else 6, "3", rabbitmq_url, mariadb_url)

    assert figures["findings"] == []
    assert figures["builds"] > 0
    assert figures["is_growth_judged"] is LONG
    series = figures["series"]
    for name in ("memory_mb scheduler1", "descriptors conductor1", "threads conductor-cell1", "rows requests"):
        assert len(series[name]) == 10
        assert max(series[name]) > 0
    assert series["seconds build"]
    assert ("growth is not judged" in log) is not LONG


@pytest.fixture
def former(tmp_path: Path) -> str:
    """Return an interpreter that has the former release, as the history of the sources has it."""
    sources = Path(__file__).parents[3]
    git = (private_servers.program("git", "git"), "-C", str(sources))
    if subprocess.run([*git, "cat-file", "-e", FORMER], check=False, stderr=subprocess.DEVNULL).returncode:
        private_servers.absent("the history of the sources is not here: clone the repository with all commits")
    with subprocess.Popen([*git, "archive", FORMER], stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", str(tmp_path)], stdin=archive.stdout, check=True)
    python = tmp_path / "former-python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.skipif(not LONG, reason="DRILLS=long replaces the services of a cloud of the former release")
def test_a_cloud_of_the_former_release_is_upgraded_and_taken_back_under_load_and_nothing_is_lost(
    former: str, rabbitmq_url: str, mariadb_url: str
) -> None:
    figures, log = run("upgrade", 120, "5", rabbitmq_url, mariadb_url, "--former", former)

    assert figures["replaced"] == 16
    assert figures["builds"] > 0
    assert figures["moves"] > 0
    assert figures["findings"] == []
    assert log.count("started with this release") == log.count("started with the former release") == 8
