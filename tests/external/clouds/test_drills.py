"""Drills on real servers: services are processes, which are paused and cut off, and nothing is lost.

`make test` lets a small cloud live for a month of a few seconds; with DRILLS=long in the environment it is seven
minutes, and judged for growth.
"""

import json
import os
import subprocess
import sys

LONG = os.environ.get("DRILLS") == "long"


def test_orders_whose_messages_are_late_lost_and_doubled_end_and_leave_nothing(
    rabbitmq_url: str, mariadb_url: str
) -> None:
    urls = ["--transport-url", rabbitmq_url, "--database-url", mariadb_url]
    command = [
        sys.executable,
        "-m",
        "moorage.cli.shell",
        "drill",
        "run",
        "late",
        *urls,
        "--seed",
        "1",
        "--seconds",
        "8",
    ]
    done = subprocess.run([*command, "-f", "json"], text=True, capture_output=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["faults"] > 0
    assert figures["builds"] > 0
    assert figures["findings"] == []
    assert "loses its connections to the broker" in done.stderr


def test_a_month_of_a_small_cloud_leaves_nothing_and_what_it_is_judged_by_is_measured(
    rabbitmq_url: str, mariadb_url: str
) -> None:
    seconds = 420 if LONG else 6
    command = [sys.executable, "-m", "moorage.cli.shell", "drill", "run", "age", "--seed", "3"]
    urls = ["--transport-url", rabbitmq_url, "--database-url", mariadb_url]
    done = subprocess.run(
        [*command, *urls, "--seconds", str(seconds), "-f", "json"],
        text=True,
        capture_output=True,
        check=False,
        timeout=seconds + 270,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["findings"] == []
    assert figures["builds"] > 0
    assert figures["is_growth_judged"] is LONG
    series = figures["series"]
    for name in ("memory_mb scheduler1", "descriptors conductor1", "threads conductor-cell1", "rows requests"):
        assert len(series[name]) == 10
        assert max(series[name]) > 0
    assert series["seconds build"]
    assert ("growth is not judged" in done.stderr) is not LONG
