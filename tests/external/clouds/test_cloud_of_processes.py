"""Builds and falls back with each service as a separate process, on a real RabbitMQ and a real MariaDB."""

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from support.processes.building_client import SPEC, ask_until_all_are_decided, build, built
from support.processes.forked_cloud import ForkedCloud
from support.processes.forked_process import CONTEXT

from harness.audit import judge
from harness.servers import MariaDBServer, RabbitMQServer
from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import BuildInstances, ListInstances, ListResourceProviders, ShowInstance


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    database = Database(migrated_url, "main")
    yield database
    database.close()


@pytest.fixture
def servers(mariadb: MariaDBServer, rabbitmq: RabbitMQServer) -> Iterator[tuple[MariaDBServer, RabbitMQServer]]:
    """The session's servers; if the test has stopped them, they are started again afterwards."""
    yield mariadb, rabbitmq
    for server in (mariadb, rabbitmq):
        if server._main is None:
            server.start()


def begin(cloud: ForkedCloud, *cells: str) -> None:
    for cell in cells:
        cloud.run("cell", "create", cell)
        cloud.start(f"conductor-{cell}", "conductor", "--cell", cell)
    cloud.start("conductor", "conductor")


def test_two_schedulers_and_eight_clients_fill_two_cells_exactly_and_the_other_builds_get_the_reason(
    migrated_url: str, rabbitmq_url: str, database: Database
) -> None:
    hosts, slots, clients, each = 10, 8, 8, 12
    with ForkedCloud(rabbitmq_url, migrated_url) as cloud:
        begin(cloud, "cell1", "cell2")
        for number in (1, 2):
            cloud.start(f"scheduler{number}", "scheduler", "--name", f"scheduler{number}")
        for cell in ("cell1", "cell2"):
            cloud.start(f"compute-{cell}", "compute", "--cell", cell, "--agent", f"agent-{cell}", "--fake-hosts", "5")
        cloud.wait_for_hosts(hosts)

        answers: multiprocessing.Queue[tuple[str, str | None]] = CONTEXT.Queue()
        asking = [
            CONTEXT.Process(target=ask_until_all_are_decided, args=(str(cloud.config_file), each, answers))
            for _ in range(clients)
        ]
        for process in asking:
            process.start()
        ended = Counter(answers.get(timeout=240) for _ in range(clients * each))
        for process in asking:
            process.join(60)

        assert ended == {
            ("active", None): hosts * slots,
            ("error", f"resources={hosts}"): clients * each - hosts * slots,
        }
        instances = cloud.client("conductor", timeout=60).call(ListInstances())
        active = [instance for instance in instances if instance.state == "active"]
        assert len(active) == hosts * slots
        assert set(Counter(instance.host for instance in active).values()) == {slots}
        verdict = judge(database, [instance.uuid for instance in active])
        assert (verdict.overcommitted, verdict.leaked) == (0, 0)
        for name in list(cloud.processes):
            assert cloud.stop(name) == 0, cloud.log(name)[-3000:]


def test_a_build_reaches_its_second_alternate_while_every_scheduler_is_stopped(
    migrated_url: str, rabbitmq_url: str, database: Database
) -> None:
    with ForkedCloud(rabbitmq_url, migrated_url, {"scheduler": {"serve_placement": "false"}}) as cloud:
        begin(cloud, "cell1")
        cloud.start("placement", "placement")
        cloud.start("scheduler", "scheduler")
        # Larger hosts have higher weights, so the two failing hosts are tried before the working one.
        failing = {"memory_mb": 65536, "vcpus": 64, "fail_rate": 1.0, "spawn_seconds": 3.0}
        cloud.start(
            "failing", "compute", "--cell", "cell1", "--agent", "failing", "--fake-hosts", "2",
            settings={"fake_driver": failing},
        )  # fmt: skip
        cloud.start("working", "compute", "--cell", "cell1", "--agent", "working", "--fake-hosts", "1")
        cloud.wait_for_hosts(3)

        conductor = cloud.client("conductor")
        uuid = ids.fresh()
        conductor.call(BuildInstances(request_spec=SPEC, instance_uuids=(uuid,), request_id=ids.fresh()))
        end = time.monotonic() + 60
        while not conductor.call(ShowInstance(instance_uuid=uuid)).attempts:
            assert time.monotonic() < end
            time.sleep(0.05)
        cloud.stop("scheduler")
        instance = built(conductor, uuid)

        assert instance.state == "active", instance
        assert [attempt.state for attempt in instance.attempts] == ["failed", "failed", "active"]
        assert [str(attempt.host).split("-")[0] for attempt in instance.attempts] == ["failing", "failing", "working"]
        assert all(attempt.reason for attempt in instance.attempts[:2])
        for provider in cloud.client("placement").call(ListResourceProviders()):
            used = {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20} if provider.name == instance.host else {}
            assert {name: amount for name, amount in provider.used.items() if amount} == used
        assert judge(database, [uuid]).clean


def test_if_all_attempts_fail_the_reason_names_each_and_nothing_is_held(
    migrated_url: str, rabbitmq_url: str, database: Database
) -> None:
    with ForkedCloud(rabbitmq_url, migrated_url, {"fake_driver": {"fail_rate": 1.0}}) as cloud:
        cloud.start_services(hosts=4)

        instance = build(cloud.client("conductor"))

        assert instance.state == "error"
        assert instance.host is None
        assert [attempt.state for attempt in instance.attempts] == ["failed"] * 3
        assert all(attempt.host in str(instance.reason) for attempt in instance.attempts)
        verdict = judge(database, [])
        assert (verdict.overcommitted, verdict.leaked) == (0, 0)


def test_the_request_id_and_the_attempt_id_are_on_the_log_lines_of_every_service(
    migrated_url: str, rabbitmq_url: str
) -> None:
    with ForkedCloud(rabbitmq_url, migrated_url, {"DEFAULT": {"debug": "true"}}) as cloud:
        cloud.start_services(hosts=1)
        conductor = cloud.client("conductor")
        uuid, request_id = ids.fresh(), "req-that-is-followed"

        conductor.call(BuildInstances(request_spec=SPEC, instance_uuids=(uuid,), request_id=request_id))
        instance = built(conductor, uuid)

        assert instance.state == "active"
        for name in ("conductor", "scheduler", "conductor-cell1", "compute"):
            assert request_id in cloud.log(name), name
        for name in ("conductor-cell1", "compute"):
            lines = [line for line in cloud.log(name).splitlines() if request_id in line]
            assert any(instance.attempts[0].attempt_id in line for line in lines), name


def test_a_stopped_broker_and_a_stopped_database_are_reported_by_different_errors(
    servers: tuple[MariaDBServer, RabbitMQServer], migrated_url: str, rabbitmq_url: str
) -> None:
    mariadb, rabbitmq = servers
    with ForkedCloud(rabbitmq_url, migrated_url) as cloud:
        cloud.start_services(hosts=1)

        mariadb.stop()
        with pytest.raises(errors.StoreUnavailable):
            build(cloud.client("conductor"))
        done = cloud.run("host", "list", check=False)
        assert done.returncode == 1
        assert "database of main cannot be reached" in done.stderr
        assert "moorage:" not in done.stderr  # no URL, because it contains a password

        mariadb.start()
        assert build(cloud.client("conductor")).state == "active"

        rabbitmq.stop()
        with pytest.raises(errors.BusUnavailable):
            build(cloud.client("conductor"))
        done = cloud.run("instance", "list", check=False)
        assert done.returncode == 1
        assert "message bus cannot be reached" in done.stderr
        rabbitmq.start()
        end = time.monotonic() + 120
        while True:
            try:
                assert build(cloud.client("conductor", timeout=5.0)).state == "active"
                break
            except errors.Unavailable:
                assert time.monotonic() < end
