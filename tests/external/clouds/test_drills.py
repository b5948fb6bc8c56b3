"""Drills on real servers: services are processes, which are paused and cut off, and nothing is lost."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.servers


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
