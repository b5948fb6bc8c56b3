"""Benchmarks on real servers: each service is a process of its own, measured beside bare RPC."""

import contextlib
import json
import subprocess
import sys

import pytest
from sqlalchemy import inspect

from moorage.db.database import Database

pytestmark = pytest.mark.servers


@pytest.mark.parametrize(("command", "each"), [("select", "claims_per_s"), ("build", "builds_per_s")])
def test_a_bench_measures_processes_beside_bare_rpc_and_leaves_the_database_as_it_was(
    command: str, each: str, rabbitmq_url: str, mariadb_url: str
) -> None:
    urls = ["--transport-url", rabbitmq_url, "--database-url", mariadb_url]
    load = ["--hosts", "10", "--cells", "2", "--clients", "4", "--processes", "2", "--seconds", "2"]

    done = subprocess.run(
        [sys.executable, "-m", "moorage.cli.shell", "bench", command, *urls, *load, "-f", "json"],
        text=True,
        capture_output=True,
        check=False,
        timeout=240,
    )

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures[each] > 0
    assert figures["echo_calls_per_s"] > 0
    assert {"scheduler1", "conductor", "conductor-cell1", "conductor-cell2", "clients"} <= figures["cpu_ms"].keys()
    assert (figures["refused"], figures["overcommitted"], figures["leaked"]) == ({}, 0, 0)
    with contextlib.closing(Database(mariadb_url, "main")) as database:
        assert database.read(lambda connection: inspect(connection).get_table_names()) == []
