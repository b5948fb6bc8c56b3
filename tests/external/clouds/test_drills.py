"""Drills on real servers: services are processes, which are paused and cut off, and nothing is lost.

In `make test`, the month of a small cloud lasts for a few seconds; with DRILLS=long in the environment it lasts for
seven minutes, and its growth is judged.
"""

import json
import os
from typing import Any

from support.processes.command import moorage

LONG = os.environ.get("DRILLS") == "long"


def run(drill: str, seconds: int, seed: str, transport_url: str, database_url: str) -> tuple[dict[str, Any], str]:
    """Run a drill, and return its figures and its log; fail if it has findings."""
    urls = ("--transport-url", transport_url, "--database-url", database_url)
    words = ("drill", "run", drill, *urls, "--seed", seed, "--seconds", str(seconds), "-f", "json")
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
