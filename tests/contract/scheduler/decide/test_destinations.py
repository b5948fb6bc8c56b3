"""Test select_destinations on SQLite and on MariaDB: one transaction claims all, and an id has one answer."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from support.scheduler.aggregate_builders import Aggregates
from support.scheduler.builders import CELLS, by_number, funnel, select
from support.scheduler.rig import Rig, node_uuid

from moorage import errors
from moorage.model import RequestSpec, Selection
from moorage.plugin import Filter, Host


def hosts_of(selections: list[Selection]) -> list[str]:
    return [selection.service_host for selection in selections]


# --- What an answer is ----------------------------------------------------------------------------------------------


def test_the_first_selection_is_claimed_and_has_its_allocations(rig: Rig) -> None:
    rig.add_hosts([1], availability_zone="a")
    message = select("r1", num_alternates=2)
    [[claimed]] = rig.scheduler().select(message)
    assert claimed.service_host == "host1"
    assert (claimed.cell_uuid, claimed.agent, claimed.availability_zone) == (CELLS[0], "agent", "a")
    request = claimed.allocation_request
    assert request.allocations[node_uuid(1)].resources == {"VCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 20}
    assert request.mappings == {"": (node_uuid(1),)}
    assert claimed.limits == {"VCPU": 16.0, "MEMORY_MB": 32768.0, "DISK_GB": 500.0}
    [holder] = rig.audit().holders
    assert (holder.uuid, holder.claim_id) == (message.instance_uuids[0], claimed.claim_id)
    assert claimed.consumer_generation == 1


def test_alternates_are_different_unclaimed_hosts_of_the_claimed_hosts_cell(rig: Rig) -> None:
    rig.add_hosts(range(5), cell=0)
    rig.add_hosts(range(5, 10), cell=1)
    scheduler = rig.scheduler()
    for number in range(6):
        [[claimed, *alternates]] = scheduler.select(select(f"r{number}", num_alternates=3))
        assert len(alternates) == 3
        assert len({claimed.service_host, *hosts_of(alternates)}) == 4
        assert {alternate.cell_uuid for alternate in alternates} == {claimed.cell_uuid}
        assert all(a.claim_id is None and a.consumer_generation is None for a in alternates)
        assert all(list(a.allocation_request.allocations) == [a.compute_node_uuid] for a in alternates)
    assert len(rig.audit().holders) == 6


def test_there_are_at_most_as_many_alternates_as_asked_for_and_as_the_cell_has(rig: Rig) -> None:
    rig.add_hosts([1, 2])
    rig.add_hosts([3, 4, 5, 6], cell=1)
    scheduler = rig.scheduler(plugins=by_number())
    assert hosts_of(scheduler.select(select("r1", num_alternates=0))[0]) == ["host1"]
    assert hosts_of(scheduler.select(select("r2", num_alternates=5))[0]) == ["host1", "host2"]


def test_forced_hosts_are_filtered_like_others_and_have_no_alternates(rig: Rig) -> None:
    rig.add_hosts(range(4))
    scheduler = rig.scheduler()
    [[claimed]] = scheduler.select(select("r1", num_alternates=2, force_hosts=("HOST2",)))
    assert claimed.service_host == "host2"
    [[claimed]] = scheduler.select(select("r2", num_alternates=2, force_nodes=("host3", "host1")))
    assert claimed.service_host in {"host1", "host3"}
    rig.take(2, vcpus=14)
    with pytest.raises(errors.NoValidHost) as caught:
        scheduler.select(select("r3", force_hosts=("host2",)))
    assert caught.value.explanation["named_hosts"] == {"host2": "has not enough room: VCPU, 2 asked, 0 free"}


# --- Refused claims -------------------------------------------------------------------------------------------------


def test_a_host_that_filled_up_meanwhile_is_passed_over_and_not_offered(rig: Rig) -> None:
    rig.add_hosts(range(5))
    scheduler = rig.scheduler(max_age=3600.0, plugins=by_number())
    rig.take(0, vcpus=15)
    rig.take(1, vcpus=15)
    [selections] = scheduler.select(select("r1", num_alternates=4))
    assert hosts_of(selections) == ["host2", "host3", "host4"]
    assert scheduler.used(0) == 15
    assert scheduler.used(1) == 15


def test_a_host_that_refused_a_claim_is_no_alternate_even_if_it_has_room_again(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler(max_age=3600.0, plugins=by_number())
    taker = rig.take(0, vcpus=15)
    released: list[str] = []
    refresh = scheduler.follower.refresh

    def refresh_late(provider_uuids: Collection[str]) -> None:
        if not released:
            rig.release(taker)
            released.append(taker)
        refresh(provider_uuids)

    scheduler.follower.refresh = refresh_late  # type: ignore[method-assign]
    [selections] = scheduler.select(select("r1", num_alternates=4))
    assert released
    assert scheduler.used(0) == 0
    assert hosts_of(selections) == ["host1", "host2"]


def test_a_host_that_refused_a_claim_is_no_alternate_after_the_view_has_caught_up(rig: Rig) -> None:
    rig.add_hosts(range(2))
    former = rig.take(0, vcpus=16)
    scheduler = rig.scheduler(max_age=3600.0, plugins=by_number())
    scheduler.follow()
    taker = rig.take(1, vcpus=16)
    catch_up = scheduler.follower.catch_up

    def catch_up_late(begun_after: float) -> None:
        # Both hosts have room again: the one that is full in the view, and the one that refused the claim.
        rig.release(former)
        rig.release(taker)
        catch_up(begun_after)

    scheduler.follower.catch_up = catch_up_late  # type: ignore[method-assign]
    [selections] = scheduler.select(select("r1", num_alternates=4))
    assert scheduler.used(1) == 0
    assert hosts_of(selections) == ["host0"]


def test_a_host_that_refused_a_claim_is_tried_again_before_the_answer_is_no_valid_host(rig: Rig) -> None:
    rig.add_hosts([0])
    scheduler = rig.scheduler(max_age=3600.0)
    taker = rig.take(0, vcpus=16)
    refresh = scheduler.follower.refresh

    def refresh_early(provider_uuids: Collection[str]) -> None:
        refresh(provider_uuids)
        rig.release(taker)

    scheduler.follower.refresh = refresh_early  # type: ignore[method-assign]
    [selections] = scheduler.select(select("r1"))
    assert hosts_of(selections) == ["host0"]


def test_a_claim_refused_after_the_view_has_caught_up_makes_it_catch_up_again(rig: Rig) -> None:
    rig.add_hosts([0])
    takers = [rig.take(0, vcpus=16)]
    scheduler = rig.scheduler(max_age=3600.0)
    catch_up, refresh = scheduler.follower.catch_up, scheduler.follower.refresh

    def catch_up_early(begun_after: float) -> None:
        former = list(takers)
        if former:
            rig.release(takers.pop())
        catch_up(begun_after)
        if former:
            takers.append(rig.take(0, vcpus=16))

    def refresh_late(provider_uuids: Collection[str]) -> None:
        rig.release(takers.pop())
        refresh(provider_uuids)

    scheduler.follower.catch_up = catch_up_early  # type: ignore[method-assign]
    scheduler.follower.refresh = refresh_late  # type: ignore[method-assign]
    [selections] = scheduler.select(select("r1"))
    assert hosts_of(selections) == ["host0"]


def test_if_one_claim_is_refused_all_are_rolled_back_and_planned_again(rig: Rig) -> None:
    rig.add_hosts(range(3), vcpus=4)
    scheduler = rig.scheduler(max_age=3600.0)
    rig.take(1, vcpus=3)
    answer = scheduler.select(select("r1", count=4))
    assert sorted(selection[0].service_host for selection in answer) == ["host0", "host0", "host2", "host2"]
    assert len(rig.audit().holders) == 5


def test_a_request_that_loses_every_race_ends_in_contention(rig: Rig) -> None:
    rig.add_hosts(range(6))
    scheduler = rig.scheduler(max_age=3600.0, max_tries=3, plugins=by_number())
    for number in range(6):
        rig.take(number, vcpus=15)
    with pytest.raises(errors.ClaimContention) as caught:
        scheduler.select(select("r1"))
    assert caught.value.tries == 3
    assert len(rig.audit().holders) == 6


def test_a_host_whose_provider_was_deleted_meanwhile_is_passed_over(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler(max_age=3600.0, plugins=by_number())
    rig.delete_provider(node_uuid(0))
    [[claimed]] = scheduler.select(select("r1"))
    assert claimed.service_host == "host1"


# --- Several instances ----------------------------------------------------------------------------------------------


def test_fifty_instances_are_claimed_by_one_request(rig: Rig) -> None:
    rig.add_hosts(range(5), vcpus=20, memory_mb=10 * 2048)
    message = select("r1", count=50, num_alternates=2)
    answer = rig.scheduler().select(message)
    assert len(answer) == 50
    assert {holder.uuid for holder in rig.audit().holders} == set(message.instance_uuids)
    assert sorted({selections[0].service_host for selections in answer}) == [f"host{number}" for number in range(5)]
    # The cloud is full now, so there are no alternates.
    assert all(len(selections) == 1 for selections in answer)


def test_no_instance_is_claimed_if_one_of_fifty_has_no_room(rig: Rig) -> None:
    rig.add_hosts(range(5), vcpus=20, memory_mb=10 * 2048)
    rig.take(0, vcpus=1)
    with pytest.raises(errors.NoValidHost, match="49 of 50 would fit"):
        rig.scheduler().select(select("r1", count=50))
    assert len(rig.audit().holders) == 1


def test_alternates_are_feasible_after_all_claims_of_the_request(rig: Rig) -> None:
    rig.add_hosts(range(3), vcpus=4)
    answer = rig.scheduler(plugins=by_number()).select(select("r1", count=3, num_alternates=3))
    assert [hosts_of(selections) for selections in answer] == [
        ["host0", "host1", "host2"],
        ["host0", "host1", "host2"],
        ["host1", "host2"],
    ]


def test_an_instance_that_is_named_twice_is_refused(rig: Rig) -> None:
    message = select("r1", count=2)
    with pytest.raises(errors.InvalidRequest) as caught:
        rig.scheduler().select(msgspec.structs.replace(message, instance_uuids=message.instance_uuids[:1] * 2))
    assert caught.value.path == "$.instance_uuids"


def test_a_request_whose_answer_would_be_too_large_to_store_is_refused(rig: Rig) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        rig.scheduler().select(select("r1", count=1000, num_alternates=100))
    assert caught.value.path == "$.num_alternates"


# --- Repeated requests ----------------------------------------------------------------------------------------------


def test_a_repeated_request_gets_the_same_answer_from_any_scheduler_and_claims_once(rig: Rig) -> None:
    rig.add_hosts(range(5))
    message = select("r1", count=2, num_alternates=2)
    answer = rig.scheduler().select(message)
    assert rig.scheduler().select(message) == answer
    assert len(rig.audit().holders) == 2


def test_a_repeated_request_gets_the_same_answer_although_the_cloud_is_full(rig: Rig) -> None:
    rig.add_hosts([1], vcpus=2)
    scheduler = rig.scheduler()
    answer = scheduler.select(select("r1"))
    assert scheduler.select(select("r1")) == answer
    with pytest.raises(errors.NoValidHost):
        scheduler.select(select("r2"))


def test_a_repeated_request_gets_its_answer_from_a_scheduler_whose_plug_in_is_broken(rig: Rig) -> None:
    class Broken(Filter):
        """An operator's filter that knows no host."""

        def passes(self, host: Host, request: RequestSpec) -> bool:
            raise KeyError(host.service_host)

    rig.add_hosts([1])
    broken = rig.scheduler(plugins=funnel(broken=Broken({})))
    answer = rig.scheduler().select(select("r1"))
    assert broken.select(select("r1")) == answer
    with pytest.raises(errors.BrokenPlugin):
        broken.select(select("r2"))


def test_a_request_claims_nothing_if_the_sum_of_its_weights_could_be_infinite(rig: Rig) -> None:
    rig.add_hosts([1, 2])
    scheduler = rig.scheduler()
    scheduler.select(select("r1"))
    # Aggregates of former releases may have such multipliers.
    huge = {"cpu_weight_multiplier": "1e308", "disk_weight_multiplier": "1e308"}
    Aggregates(rig).create("huge", "host1", "host2", **huge)
    with pytest.raises(errors.BadPluginValue, match="aggregate metadata cpu_weight_multiplier is '1e308'"):
        scheduler.select(select("r2"))
    assert len(rig.audit().holders) == 1


def test_the_same_request_at_many_schedulers_at_once_is_one_claim(rig: Rig) -> None:
    rig.add_hosts(range(3))
    schedulers = [rig.scheduler() for _ in range(4)]
    for number in range(5):
        message = select(f"r{number}", num_alternates=1)
        with ThreadPoolExecutor(len(schedulers)) as pool:
            answers = list(pool.map(lambda scheduler, sent=message: scheduler.select(sent), schedulers))
        assert all(answer == answers[0] for answer in answers)
    assert len(rig.audit().holders) == 5


def test_the_same_request_for_the_last_slot_at_many_schedulers_at_once_is_never_refused(rig: Rig) -> None:
    rig.add_hosts([1], vcpus=10)
    schedulers = [rig.scheduler() for _ in range(4)]
    for number in range(5):
        message = select(f"r{number}")
        with ThreadPoolExecutor(len(schedulers)) as pool:
            answers = list(pool.map(lambda scheduler, sent=message: scheduler.select(sent), schedulers))
        assert all(answer == answers[0] for answer in answers)


def test_a_request_id_that_was_used_for_another_request_is_refused(rig: Rig) -> None:
    rig.add_hosts([1], vcpus=2)
    scheduler = rig.scheduler()
    scheduler.select(select("r1"))
    for other in (select("r1", vcpus=1), select("r1", num_alternates=1), select("r1", vcpus=900)):
        with pytest.raises(errors.RequestIdReused):
            scheduler.select(other)


def test_the_answer_to_a_repeated_request_marks_claims_that_were_released(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    message = select("r1", count=3, num_alternates=1)
    answer = scheduler.select(message)
    rig.release(message.instance_uuids[0])
    rig.release(message.instance_uuids[1], for_good=True)
    again = scheduler.select(message)
    assert again[2] == answer[2]
    assert [selections[0].released for selections in again] == [True, True, False]
    assert [hosts_of(selections) for selections in again] == [hosts_of(selections) for selections in answer]
    # The first one's row is still there, at a later generation; the second is gone for good.
    assert again[0][0].consumer_generation == 2
    assert again[1][0].consumer_generation is None
    rig.release(message.instance_uuids[2])
    with pytest.raises(errors.ClaimReleased) as caught:
        scheduler.select(message)
    assert caught.value.claim_id == answer[0][0].claim_id
    assert not rig.audit().holders


def test_a_refusal_is_not_stored_so_the_request_may_be_repeated(rig: Rig) -> None:
    rig.add_hosts([1], vcpus=2)
    taker = rig.take(1, vcpus=2)
    scheduler = rig.scheduler()
    with pytest.raises(errors.NoValidHost):
        scheduler.select(select("r1"))
    rig.release(taker)
    assert scheduler.select(select("r1"))[0][0].service_host == "host1"


def test_nothing_is_claimed_for_an_instance_that_is_deleted_or_holds_allocations(rig: Rig) -> None:
    rig.add_hosts([1])
    scheduler = rig.scheduler()
    deleted = select("r1")
    rig.release(deleted.instance_uuids[0], for_good=True)
    with pytest.raises(errors.ConsumerDeleted):
        scheduler.select(deleted)
    holding = select("r2")
    rig.take(1, vcpus=1, consumer=holding.instance_uuids[0])
    with pytest.raises(errors.ConsumerGenerationConflict):
        scheduler.select(holding)
