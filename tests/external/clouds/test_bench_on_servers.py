"""Benchmarks on real servers: each service is a separate process, and bare RPC is measured in the same run."""

import contextlib
import json
from typing import Any

import pytest
from sqlalchemy import inspect
from support.processes.command import moorage

from harness.arguments import Servers
from harness.bench.cloud import running
from harness.bench.requests import Request
from harness.bench.store import host_settings, occupy
from harness.cloud import CloudSpec
from moorage import errors
from moorage.db.database import Database

LOAD = ["--clients", "4", "--processes", "2", "--seconds", "2"]


def figures_of(command: str, *words: str) -> Any:
    done = moorage("bench", command, *words, *LOAD, "-f", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def is_empty(url: str) -> bool:
    with contextlib.closing(Database(url, "main")) as database:
        return database.read(lambda connection: inspect(connection).get_table_names()) == []


@pytest.mark.parametrize(
    ("command", "each", "shape"),
    [
        ("select", "claims_per_s", ["--schedulers", "2", "--occupancy", "80", "--groups", "0.3", "--nested"]),
        ("build", "builds_per_s", []),
    ],
)
def test_a_benchmark_measures_processes_and_bare_rpc_and_leaves_the_database_empty(
    command: str, each: str, shape: list[str], rabbitmq_url: str, mariadb_url: str
) -> None:
    urls = ["--transport-url", rabbitmq_url, "--database-url", mariadb_url]
    figures = figures_of(command, *urls, "--hosts", "160", "--cells", "2", *shape)

    assert figures[each] > 0
    assert figures["echo_calls_per_s"] > 0
    assert {"scheduler1", "conductor", "conductor-cell1", "conductor-cell2", "clients"} <= figures["cpu_ms"].keys()
    assert figures["conflicts"] >= 0
    assert (figures["refused"], figures["overcommitted"], figures["leaked"]) == ({}, 0, 0)
    assert is_empty(mariadb_url)


def test_hosts_may_become_full_during_a_benchmark(rabbitmq_url: str, mariadb_url: str) -> None:
    urls = ["--transport-url", rabbitmq_url, "--database-url", mariadb_url]
    figures = figures_of("select", *urls, "--hosts", "1", "--occupancy", "99", "--alternates", "0")

    assert figures["refused"].keys() == {"moorage.no_valid_host"}
    assert (figures["overcommitted"], figures["leaked"]) == (0, 0)
    assert figures["echo_calls_per_s"] > 0


def test_the_store_alone_is_measured_by_processes_and_the_database_is_left_empty(mariadb_url: str) -> None:
    figures = figures_of("claims", "--database-url", mariadb_url, "--hosts", "20", "--per-request", "2")

    assert figures["claims_per_s"] > 0
    assert figures["cpu_ms"].keys() == {"clients"}
    assert (figures["refused"], figures["overcommitted"], figures["leaked"]) == ({}, 0, 0)
    assert is_empty(mariadb_url)


def test_bare_rpc_can_be_measured_alone(rabbitmq_url: str) -> None:
    figures = figures_of("echo", "--transport-url", rabbitmq_url, "--per-request", "3")

    assert figures["calls_per_s"] > 0
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert figures["cpu_ms"].keys() == {"server", "clients"}


def test_a_refused_claim_is_counted_as_a_conflict_by_a_line_of_the_schedulers_log(
    rabbitmq_url: str, mariadb_url: str
) -> None:
    settings = {
        "fake_driver": host_settings(99.0, nested=False),
        "scheduler": {"view_max_age": 3600.0, "view_compare_interval": 3600.0, "host_down_after": 86400.0},
    }
    with running(Servers(rabbitmq_url, mariadb_url), CloudSpec(hosts=2, settings=settings)) as cloud:
        scheduler = cloud.client("scheduler")
        with cloud.conflicts() as conflicts:
            scheduler.call(Request(alternates=0).message())
            assert conflicts() == 0
            cloud.stop_agents()
            # The scheduler does not notice that most of each host is taken: its view does not follow the store.
            occupy(cloud.database, 99.0)
            with pytest.raises(errors.NoValidHost):
                scheduler.call(Request(per_request=9, alternates=0).message())
            assert conflicts() > 0
