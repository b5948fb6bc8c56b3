"""Probe real processes while their broker or their database is unreachable or silent, and afterwards."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import requests
import yaml
from prometheus_client.parser import text_string_to_metric_families
from support.processes.building_client import build
from support.processes.forked_cloud import ForkedCloud
from support.processes.private_servers import program
from support.processes.stopwatch import Stopwatch

from harness.servers import free_ports
from harness.tcp_proxy import TcpProxy
from harness.waiting import wait_until

#: The maximum seconds of an answer, whichever server is silent: the checks wait for two, and the machine may be busy.
BOUND = 4.0
RULES = Path(__file__).parents[3] / "etc/prometheus/moorage.rules.yml"
SERVICES = {
    "scheduler": ("scheduler",),
    "conductor": ("conductor",),
    "conductor-cell1": ("conductor", "--cell", "cell1"),
    "compute": ("compute", "--cell", "cell1", "--fake-hosts", "2"),
}


class World(NamedTuple):
    """A cloud of processes, the proxies between its scheduler and the servers, and the metrics port of each process."""

    cloud: ForkedCloud
    broker: TcpProxy
    database: TcpProxy
    ports: dict[str, int]

    def probe(self, name: str, path: str = "/readyz") -> tuple[int, dict[str, str]]:
        watch = Stopwatch()
        reply = requests.get(f"http://127.0.0.1:{self.ports[name]}{path}", timeout=30)
        assert watch.seconds < BOUND
        return reply.status_code, reply.json()["reasons"]

    def is_ready(self, name: str) -> bool:
        return self._listens(name) and self.probe(name) == (200, {})

    def becomes_ready(self, name: str) -> None:
        wait_until(lambda: self.is_ready(name), lambda: self._describe(name))

    def _listens(self, name: str) -> bool:
        try:
            self.probe(name)
        except requests.ConnectionError:
            return False
        return True

    def _describe(self, name: str) -> str:
        return f"{name}: {self.probe(name) if self._listens(name) else 'nothing'}\n{self.cloud.log(name)[-3000:]}"

    def metrics(self, name: str) -> dict[str, float]:
        """Return the sums of all samples, by name."""
        reply = requests.get(f"http://127.0.0.1:{self.ports[name]}/metrics", timeout=30)
        assert reply.status_code == 200
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(reply.text):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found


def _proxied(opened: ExitStack, url: str) -> tuple[TcpProxy, str]:
    parts = urlsplit(url)
    proxy = opened.enter_context(TcpProxy(parts.hostname or "", parts.port or 0))
    return proxy, url.replace(f":{parts.port}/", f":{proxy.port}/")


@pytest.fixture
def world(migrated_url: str, rabbitmq_url: str) -> Iterator[World]:
    with ExitStack() as opened:
        broker, broker_url = _proxied(opened, rabbitmq_url)
        database, proxied_database = _proxied(opened, migrated_url)
        cloud = opened.enter_context(ForkedCloud(rabbitmq_url, migrated_url, {"service": {"report_interval": 1.0}}))
        cloud.run("cell", "create", "cell1")
        ports = dict(zip(SERVICES, free_ports(len(SERVICES)), strict=True))
        through_proxies: dict[str, dict[str, Any]] = {
            "DEFAULT": {"transport_url": broker_url},
            "database": {"connection": proxied_database, "statement_timeout": 2.0, "lock_wait_timeout": 1.0},
        }
        for name, words in SERVICES.items():
            settings = through_proxies if name == "scheduler" else {}
            cloud.start(name, *words, "--metrics-port", str(ports[name]), settings=settings)
        world = World(cloud, broker, database, ports)
        for name in SERVICES:
            world.becomes_ready(name)
        yield world


def test_a_process_is_not_ready_while_its_broker_or_database_is_unreachable_and_names_the_reason(world: World) -> None:
    world.cloud.wait_for_hosts(2)
    build(world.cloud.client("conductor"))
    for name in SERVICES:
        assert world.probe(name, "/healthz") == (200, {})
    assert world.metrics("scheduler")["moorage_claims_total"] == 1
    assert world.metrics("scheduler")["moorage_view_hosts"] >= 2
    assert world.metrics("conductor")["moorage_operation_steps_total"] >= 2
    assert world.metrics("conductor-cell1")["moorage_rpc_requests_total"] >= 3
    assert world.metrics("compute")["moorage_rpc_requests_total"] >= 1

    world.broker.refuse()
    wait_until(lambda: world.probe("scheduler")[1].keys() == {"broker"}, "the broker as the reason")
    assert world.probe("scheduler")[0] == 503
    assert world.metrics("scheduler")["moorage_ready"] == 3  # started, database, view; not the broker
    assert world.probe("scheduler", "/healthz") == (200, {})
    # The scheduler also serves the placement role, which is all that the conductors lack.
    wait_until(lambda: world.probe("conductor")[1].keys() == {"placement"}, "the reason of the conductor")
    world.broker.resume()
    for name in SERVICES:
        world.becomes_ready(name)

    world.database.go_silent(new_too=True)
    wait_until(lambda: "database" in world.probe("scheduler")[1], "the database as a reason")
    for _ in range(3):
        assert world.probe("scheduler")[0] == 503
    assert world.probe("scheduler", "/healthz") == (200, {})
    world.database.resume()
    for name in SERVICES:
        world.becomes_ready(name)


def test_each_worker_of_a_scheduler_has_its_own_port_and_counters(world: World) -> None:
    world.cloud.stop("scheduler")
    [port] = free_ports(1)
    words = ("scheduler", "--name", "two", "--metrics-port", str(port))
    world.cloud.start("two", *words, settings={"scheduler": {"workers": 2}})
    world.ports.update({"two": port, "two-second": port + 1})
    for name in ("two", "two-second"):
        wait_until(partial(world.is_ready, name), name)
    world.cloud.wait_for_hosts(2)
    build(world.cloud.client("conductor"))
    claims = [world.metrics(name)["moorage_claims_total"] for name in ("two", "two-second")]
    assert sorted(claims) == [0, 1]


def test_a_port_that_is_in_use_ends_the_start_with_the_reason(world: World) -> None:
    ended = world.cloud.run("conductor", "--metrics-port", str(world.ports["conductor"]), check=False)
    assert ended.returncode == 1
    assert "cannot be listened on" in ended.stdout + ended.stderr


class Prometheus:
    """A private Prometheus with the alert rules, and with the services of a cloud as its jobs."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        path = program("prometheus", "prometheus")
        jobs = {
            "scheduler": "scheduler",
            "conductor": "conductor",
            "conductor-cell1": "cell-conductor",
            "compute": "compute",
        }
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {"job_name": f"moorage-{jobs[name]}", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
                for name, port in ports.items()
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        [port] = free_ports(1)
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                path,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def get(self, path: str, **parameters: str) -> Any:
        """Return the answer of its HTTP API, or null while it does not listen or is not ready."""
        try:
            reply = requests.get(f"{self._url}/{path}", params=parameters, timeout=10)
        except requests.ConnectionError:
            return None
        return reply.json()["data"] if reply.status_code == 200 else None

    def values(self, query: str) -> dict[str, float]:
        """Return the current values of a query, by job."""
        answer = self.get("query", query=query) or {"result": []}
        return {each["metric"].get("job", ""): float(each["value"][1]) for each in answer["result"]}

    def states(self) -> dict[str, str]:
        """Return the state of each alert."""
        answer = self.get("rules") or {"groups": []}
        return {rule["name"]: rule["state"] for group in answer["groups"] for rule in group["rules"]}

    def close(self) -> None:
        """Stop the process."""
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


def test_a_real_prometheus_accepts_the_metrics_and_its_alerts_notice_an_unreachable_broker(
    world: World, tmp_path: Path
) -> None:
    world.cloud.wait_for_hosts(2)
    build(world.cloud.client("conductor"))
    with ExitStack() as opened:
        prometheus = Prometheus(tmp_path, world.ports)
        opened.callback(prometheus.close)
        jobs = {f"moorage-{kind}" for kind in ("scheduler", "conductor", "cell-conductor", "compute")}
        wait_until(lambda: prometheus.values("min by (job) (moorage_ready)") == dict.fromkeys(jobs, 1.0), "the scrapes")
        assert prometheus.values("up") == dict.fromkeys(jobs, 1.0)
        assert prometheus.values("sum(moorage_claims_total)") == {"": 1.0}
        rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
        wait_until(lambda: prometheus.states().keys() == {rule["alert"] for rule in rules}, "the rules")
        health = {rule["health"] for group in prometheus.get("rules")["groups"] for rule in group["rules"]}
        assert health <= {"ok", "unknown"}
        wait_until(lambda: prometheus.states()["MoorageBrokerAway"] == "inactive", prometheus.states)

        world.broker.refuse()
        # An alert fires only after a minute; in this minute it is pending.
        wait_until(lambda: prometheus.states()["MoorageBrokerAway"] == "pending", prometheus.states)
        wait_until(lambda: prometheus.states()["MoorageNoSchedulerReady"] == "pending", prometheus.states)
        world.broker.resume()
        wait_until(lambda: prometheus.states()["MoorageBrokerAway"] == "inactive", prometheus.states)
