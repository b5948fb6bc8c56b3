"""Test that the answer NoValidHost is true and has the reasons, on SQLite and on MariaDB."""

from pathlib import Path

import pytest
from support.scheduler.builders import CELLS, instance_uuids, select
from support.scheduler.rig import OneScheduler, Rig

from moorage import errors
from moorage.messages import DeleteHost, SelectDestinations, SetHost
from moorage.messages.wire import decode
from moorage.model import Destination, Explanation
from placement_store import cells


def explanation(fault: errors.NoValidHost) -> Explanation:
    return decode(Explanation, fault.explanation)


def refusal(scheduler: OneScheduler, message: SelectDestinations) -> errors.NoValidHost:
    with pytest.raises(errors.NoValidHost) as caught:
        scheduler.select(message)
    return caught.value


def test_a_cloud_without_hosts_says_so(rig: Rig) -> None:
    fault = refusal(rig.scheduler(), select("r1"))
    assert fault.summary == "the cloud has no hosts"
    assert explanation(fault).hosts == 0


def test_a_refusal_counts_what_each_filter_removed_and_names_the_nearest_misses(rig: Rig) -> None:
    rig.add_hosts(range(3), vcpus=4)
    rig.add_hosts([3], vcpus=64, availability_zone="b")
    rig.report([], ["host0"])
    rig.take(0, vcpus=3)
    rig.take(1, vcpus=4, memory_mb=32000)
    fault = refusal(rig.scheduler(), select("r1", vcpus=5, availability_zone="nova"))
    told = explanation(fault)
    assert told.hosts == 4
    assert [(count.name, count.hosts, count.removed) for count in told.filters] == [
        ("compute", 4, 0),
        ("availability_zone", 4, 1),
        ("destination", 3, 0),
        ("traits", 3, 0),
        ("aggregates", 3, 0),
        ("resources", 3, 3),
    ]
    nearest = told.nearest_misses[0]
    assert (nearest.host, nearest.resource_class, nearest.asked, nearest.free) == ("host2", "VCPU", 5, 4.0)
    assert {miss.host for miss in told.nearest_misses} == {"host0", "host1", "host2"}
    assert {miss.resource_class for miss in told.nearest_misses if miss.host == "host1"} == {"VCPU", "MEMORY_MB"}
    assert fault.summary == told.summary()
    assert fault.summary == "0 of 4 hosts: 3 short of VCPU, nearest host2 by 1; 1 in another availability zone"


def test_nearest_misses_are_named_even_if_hosts_with_room_were_removed(rig: Rig) -> None:
    rig.add_hosts(range(5), vcpus=8)
    rig.add_hosts([5, 6], vcpus=4)
    told = explanation(refusal(rig.scheduler(), select("r1", vcpus=5, availability_zone="nowhere")))
    assert {miss.host for miss in told.nearest_misses} == {"host5", "host6"}
    assert told.nearest_hosts.keys() == {f"host{number}" for number in range(5)}


def test_a_refusal_explains_each_named_host(rig: Rig) -> None:
    rig.add_hosts([1, 2])
    scheduler = rig.scheduler()
    nowhere = "00000000-0000-0000-0000-000000000000"
    wanted = Destination(host="Host1", node="nothing", node_uuid=nowhere)
    named = explanation(refusal(scheduler, select("r1", requested_destination=wanted))).named_hosts
    assert named == {
        "Host1": "has not the node nothing that the request wants to go to",
        "nothing": "is not known",
        nowhere: "is not known",
    }


def test_a_refusal_names_the_hosts_that_refused_the_claim_itself(rig: Rig) -> None:
    rig.add_hosts([1], vcpus=2)
    scheduler = rig.scheduler(max_age=3600.0)
    rig.take(1, vcpus=1)
    told = explanation(refusal(scheduler, select("r1")))
    assert told.refused_claims == ("host1",)
    assert told.lost_races == {"host1": 1}
    assert "others were faster on 1" in told.summary()


def test_room_that_the_view_lacks_is_found_before_the_answer_is_that_no_host_is_valid(rig: Rig) -> None:
    rig.add_hosts([1], vcpus=2)
    taker = rig.take(1, vcpus=2)
    scheduler = rig.scheduler(max_age=3600.0)
    scheduler.follow()
    rig.release(taker)
    assert scheduler.used(1) == 2
    assert scheduler.select(select("r1"))[0][0].service_host == "host1"


def test_a_new_host_and_a_larger_host_that_the_view_lacks_are_found(rig: Rig) -> None:
    scheduler = rig.scheduler(max_age=3600.0)
    scheduler.follow()
    rig.add_hosts([1], vcpus=2)
    assert scheduler.select(select("r1"))[0][0].service_host == "host1"
    rig.resize_host(1, vcpus=4)
    assert scheduler.select(select("r2"))[0][0].service_host == "host1"


def test_a_change_that_the_feed_has_missed_is_found_by_a_comparison(rig: Rig) -> None:
    rig.add_hosts([1], vcpus=2)
    taker = rig.take(1, vcpus=2)
    scheduler = rig.scheduler(max_age=0.0)
    rig.release(taker)
    rig.lose_changes()
    scheduler.follow()
    assert scheduler.used(1) == 2
    assert scheduler.select(select("r1"))[0][0].service_host == "host1"


def test_the_next_decision_sees_a_claim_of_another_scheduler(rig: Rig) -> None:
    rig.add_hosts([1])
    one, other = rig.scheduler(), rig.scheduler()
    one.select(select("r1"))
    other.select(select("r2"))
    assert other.used(1) == 4
    one.follow()
    assert one.used(1) == 4
    assert not one.host_cache.provisional_ids()


def test_an_unknown_cell_is_an_error_of_its_own(rig: Rig) -> None:
    rig.add_hosts([1])
    scheduler = rig.scheduler()
    nowhere = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(errors.CellNotFound) as caught:
        scheduler.select(select("r1", requested_destination=Destination(cell=nowhere)))
    assert caught.value.name == nowhere
    # A known cell without hosts has no valid host.
    refusal(scheduler, select("r2", requested_destination=Destination(cell=CELLS[1])))


def test_a_cell_that_was_deleted_with_its_last_host_does_not_exist(rig: Rig) -> None:
    rig.add_hosts([1])
    rig.add_hosts([2], cell=1)
    scheduler = rig.scheduler()
    assert scheduler.select(select("r1", requested_destination=Destination(cell=CELLS[1])))
    rig.release(instance_uuids("r1", 1)[0])
    rig.serve(SetHost(request_id=rig.fresh(), service_host="host2", forced_down=True))
    rig.serve(DeleteHost(request_id=rig.fresh(), service_host="host2"))
    cells.delete(rig.database, "cell1")
    with pytest.raises(errors.CellNotFound):
        scheduler.select(select("r2", requested_destination=Destination(cell=CELLS[1])))


def test_without_the_database_the_answer_is_not_no_valid_host(tmp_path: Path) -> None:
    file = tmp_path / "main.sqlite"
    rig = Rig(f"sqlite:///{file}")
    rig.add_hosts([1])
    scheduler = rig.scheduler()
    rig.close()
    file.unlink()
    file.mkdir()
    with pytest.raises(errors.StoreUnavailable):
        scheduler.select(select("r1"))
