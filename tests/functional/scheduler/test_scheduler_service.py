"""Test whole schedulers on an in-process bus and an SQLite file."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select as query
from support.scheduler.builders import CELLS, select
from support.scheduler.rig import Rig, node_uuid

from harness.waiting import wait_until
from moorage import errors, ids
from moorage.bus.bus import Bus
from moorage.config import options
from moorage.messages import ListCells, ListHosts, SelectDestinations, SetHost
from moorage.messages.wire import decode
from moorage.model import Explanation
from placement_store.db.change_feed import PRUNED_AT_ONCE
from placement_store.schema import changes
from scheduler.service import SchedulerService


class Surroundings:
    """A store, a bus, and schedulers on them."""

    def __init__(self, folder: Path) -> None:
        self._closing = ExitStack()
        self.rig = Rig(f"sqlite:///{folder}/main.sqlite")
        self._closing.callback(self.rig.close)
        self.transport_url = f"inproc://{ids.fresh()}/"
        self.bus = Bus(self.configuration())
        self._closing.callback(self.bus.close)

    def close(self) -> None:
        self._closing.close()

    def configuration(self, **settings: Any) -> Any:
        return options.new(
            {
                "DEFAULT": {"transport_url": self.transport_url},
                "database": {"connection": self.rig.url},
                "scheduler": settings,
            }
        )

    def start(self, name: str = "one", **settings: Any) -> SchedulerService:
        service = SchedulerService(self.configuration(**settings), name)
        self._closing.callback(service.stop)
        service.start()
        return service

    def select(self, message: SelectDestinations) -> Any:
        return self.bus.client("scheduler", timeout=20.0).call(message)


@pytest.fixture
def around(tmp_path: Path) -> Iterator[Surroundings]:
    surroundings = Surroundings(tmp_path)
    yield surroundings
    surroundings.close()


def test_a_name_that_no_service_can_have_is_refused_before_the_hosts_are_read(
    around: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with pytest.raises(errors.ConfigurationError, match="'' is no name of a service"):
        around.start("")
    assert "Reading all hosts" not in caplog.text
    around.start("one")
    assert "Reading all hosts" in caplog.text


def test_a_request_is_answered_with_claimed_hosts_over_the_bus(around: Surroundings) -> None:
    around.rig.add_hosts(range(4))
    around.start()
    answer = around.select(select("r1", count=2, num_alternates=2))
    assert [len(selections) for selections in answer] == [3, 3]
    assert all(selections[0].claim_id for selections in answer)
    assert around.select(select("r1", count=2, num_alternates=2)) == answer


def test_a_refusal_arrives_over_the_bus_with_its_explanation(around: Surroundings) -> None:
    around.rig.add_hosts([1])
    around.start()
    with pytest.raises(errors.NoValidHost) as caught:
        around.select(select("r1", vcpus=17))
    told = decode(Explanation, caught.value.explanation)
    assert told.nearest_misses[0].free == 16.0
    assert "0 of 1 hosts: 1 short of VCPU, nearest host1 by 1" in str(caught.value)


def test_two_schedulers_share_the_work_and_see_each_others_claims(around: Surroundings) -> None:
    around.rig.add_hosts(range(4), vcpus=2 * 10, memory_mb=10 * 2048)
    for name in ("one", "two"):
        around.start(name, view_max_age=0.0)
    outcomes: list[str] = []

    def ask(thread: int) -> None:
        for number in range(12):
            try:
                around.select(select(f"r{thread}-{number}"))
                outcomes.append("claimed")
            except errors.MoorageError as fault:
                outcomes.append(type(fault).__name__)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Four hosts with room for ten instances each are filled exactly.
    assert outcomes.count("claimed") == 40
    assert set(outcomes) == {"claimed", "NoValidHost"}
    assert not around.rig.audit().overcommitted


def test_one_round_prunes_all_old_changes_of_the_feed(around: Surroundings) -> None:
    # With gaps between the ids, as in a Galera cluster.
    old = [{"id": 3 * number, "host_id": 1, "created_at": 1.0} for number in range(1, 2 * PRUNED_AT_ONCE)]
    around.rig.database.write(lambda connection: connection.execute(changes.insert(), old))
    around.start()

    def has_only_the_newest() -> bool:
        left = around.rig.database.read(lambda connection: connection.scalars(query(changes.c.id)).all())
        return list(left) == [old[-1]["id"]]

    wait_until(has_only_the_newest, seconds=30.0)


def test_a_scheduler_serves_the_placement_role_unless_configured_otherwise(around: Surroundings) -> None:
    apart = around.start("apart", serve_placement=False)
    with pytest.raises(errors.NoReply):
        around.bus.client("placement", timeout=0.3).call(ListCells())
    apart.stop()
    around.start("both")
    assert [cell.uuid for cell in around.bus.client("placement").call(ListCells())] == list(CELLS)


def test_the_sweep_marks_a_silent_host_as_down_and_it_gets_no_instances(around: Surroundings) -> None:
    around.rig.add_hosts([1])
    around.start(host_down_after=0.3, view_max_age=0.0)
    client = around.bus.client("scheduler")
    wait_until(lambda: not client.call(ListHosts())[0].up)
    with pytest.raises(errors.NoValidHost, match="0 of 1 hosts: 1 down or disabled"):
        around.select(select("r1"))


def test_a_disabled_host_gets_no_instances(around: Surroundings) -> None:
    around.rig.add_hosts([1])
    around.start(view_max_age=0.0)
    around.bus.client("scheduler").call(SetHost(request_id="s1", service_host="host1", disabled=True))
    with pytest.raises(errors.NoValidHost):
        around.select(select("r1"))
    around.bus.client("scheduler").call(SetHost(request_id="s2", service_host="host1", disabled=False))
    assert around.select(select("r1"))[0][0].compute_node_uuid == node_uuid(1)


def test_a_scheduler_with_an_unknown_plugin_does_not_start(around: Surroundings) -> None:
    with pytest.raises(
        errors.UnknownPlugin, match=r"no filter named horoscope; the known ones are: .*aggregates, availability_zone"
    ):
        around.start(enabled_filters=["compute", "horoscope"])


def test_a_scheduler_does_not_start_without_its_tables(around: Surroundings, tmp_path: Path) -> None:
    conf = around.configuration()
    conf.set_override("connection", f"sqlite:///{tmp_path}/empty.sqlite", group="database")
    service = SchedulerService(conf, "one")
    with pytest.raises(errors.SchemaMismatch):
        service.start()
    service.stop()


def test_a_scheduler_can_be_stopped_twice(around: Surroundings) -> None:
    service = around.start()
    service.stop()
    service.stop()
