"""Test select_destinations for members of server groups with hard and soft rules, on SQLite and on MariaDB."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from support.scheduler.builders import by_number, funnel, select
from support.scheduler.moving_builders import build, consumer, end, group, held, instance_of, migration_of, move
from support.scheduler.rig import Rig

from moorage import errors
from moorage.batches import BatchItem
from moorage.messages import CreateServerGroup, SelectDestinations, SwapClaim
from moorage.model import Explanation, Selection, ServerGroup
from scheduler.decide.funnel import Funnel

APART, TOGETHER = group("anti-affinity"), group("affinity")


def without_group_filters() -> Funnel:
    """Return the funnel `by_number` without the filters that check the rules of groups."""
    whole = by_number()
    return Funnel([one for one in whole.filters if not one.name.startswith("server_group")], whole.weighers)


def hosts_of(answer: list[list[Selection]]) -> list[str]:
    return [claimed.service_host for claimed, *_ in answer]


def removed(told: Explanation) -> dict[str, int]:
    return {count.name: count.removed for count in told.filters if count.removed}


# --- Anti-affinity --------------------------------------------------------------------------------------------------


def test_each_member_of_an_anti_affinity_group_gets_its_own_host_and_one_more_is_refused(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    claimed = [build(rig, scheduler, f"i{number}", server_group=APART) for number in range(3)]
    assert {one.service_host for one in claimed} == {"host0", "host1", "host2"}
    assert {one.group for one in claimed} == {APART.uuid}
    assert removed(scheduler.refusal(select("i3", server_group=APART))) == {"server_group_anti_affinity": 3}
    # Servers of another group or of no group are not affected.
    build(rig, scheduler, "i4", server_group=group("anti-affinity", number=2))
    assert build(rig, scheduler, "i5").group is None


def test_a_host_has_as_many_members_as_the_group_allows(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler()
    in_pairs = group("anti-affinity", 2)
    answer = scheduler.select(select("r1", count=4, server_group=in_pairs))
    assert sorted(hosts_of(answer)) == ["host0", "host0", "host1", "host1"]
    scheduler.refusal(select("r2", server_group=in_pairs))


def test_members_of_one_request_get_different_hosts(rig: Rig) -> None:
    rig.add_hosts(range(4))
    scheduler = rig.scheduler()
    answer = scheduler.select(select("r1", count=3, num_alternates=3, server_group=APART))
    assert len(set(hosts_of(answer))) == 3
    [free] = {"host0", "host1", "host2", "host3"} - set(hosts_of(answer))
    assert [[one.service_host for one in alternates] for _, *alternates in answer] == [[free]] * 3
    assert {one.group for selections in answer for one in selections} == {APART.uuid}
    with pytest.raises(errors.NoValidHost, match="1 of 2 would fit"):
        scheduler.select(select("r2", count=2, server_group=APART))


def test_of_the_members_of_a_group_in_one_message_one_is_decided_with_the_other_requests(rig: Rig) -> None:
    rig.add_hosts(range(3))
    # Only the members of the group make one host better than another, and the store refuses nothing by a soft rule.
    scheduler = rig.scheduler(plugins=funnel((0.0, 0.0, 0.0)))
    members = [select(f"r{number}", server_group=group("soft-anti-affinity")) for number in range(3)]
    calls = [BatchItem[SelectDestinations, list[list[Selection]]](message) for message in (*members, select("r3"))]

    alone = scheduler.endpoint.select_many(calls)

    assert [decide is None for decide in alone] == [True, False, False, True]
    answers = [decide() if decide is not None else call.outcome() for call, decide in zip(calls, alone, strict=True)]
    assert {hosts_of(answer)[0] for answer in answers[:3]} == {"host0", "host1", "host2"}


def test_a_moving_member_excludes_other_members_from_both_of_its_hosts(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1", server_group=APART)
    [[claimed]] = scheduler.select(move("m1", instance_of("i1"), source, server_group=APART))
    assert consumer(rig, migration_of("m1")).claim_id == source.claim_id
    scheduler.refusal(select("i2", server_group=APART))
    end(rig, "m1", instance_of("i1"), "confirm", source, claimed)
    assert build(rig, scheduler, "i2", server_group=APART).service_host == source.service_host


def test_a_member_can_be_resized_on_its_own_host(rig: Rig) -> None:
    rig.add_hosts([0])
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1", server_group=APART)
    [[claimed]] = scheduler.select(move("m1", instance_of("i1"), source, "resize", server_group=APART))
    assert claimed.service_host == source.service_host


def test_an_alternate_is_refused_after_another_member_was_placed_there(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler(plugins=by_number())
    [[claimed, alternate]] = scheduler.select(select("i1", num_alternates=1, server_group=APART))
    build(rig, scheduler, "i2", server_group=APART)
    with pytest.raises(errors.GroupRuleRefused):
        rig.placement.call(
            SwapClaim(
                request_id=rig.fresh(),
                consumer_uuid=instance_of("i1"),
                claim_id=str(claimed.claim_id),
                released=claimed.allocation_request,
                claimed=alternate.allocation_request,
                root_provider_uuid=alternate.compute_node_uuid,
            )
        )


# --- Affinity -------------------------------------------------------------------------------------------------------


def test_members_of_an_affinity_group_get_the_host_of_the_others(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler()
    home = build(rig, scheduler, "i1", server_group=TOGETHER, num_alternates=2)
    for number in range(2, 5):
        [selections] = scheduler.select(select(f"i{number}", num_alternates=2, server_group=TOGETHER))
        assert [one.service_host for one in selections] == [home.service_host]
    told = scheduler.refusal(select("i5", vcpus=16, server_group=TOGETHER))
    assert removed(told) == {"server_group_affinity": 2, "resources": 1}


def test_several_first_members_get_a_host_with_room_for_all_of_them(rig: Rig) -> None:
    rig.add_hosts([0], vcpus=4)
    rig.add_hosts([1], vcpus=6)
    scheduler = rig.scheduler(plugins=by_number())
    answer = scheduler.select(select("r1", count=3, num_alternates=1, server_group=TOGETHER))
    assert hosts_of(answer) == ["host1"] * 3
    # An alternate would separate one member from the others.
    assert all(len(selections) == 1 for selections in answer)
    other = group("affinity", number=2)
    told = scheduler.refusal(select("r2", count=3, server_group=other))
    assert removed(told) == {"together": 2}
    assert hosts_of(scheduler.select(select("r3", count=2, server_group=other))) == ["host0"] * 2


def test_the_only_member_can_move_and_no_member_joins_until_the_move_has_ended(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1", server_group=TOGETHER)
    [[claimed]] = scheduler.select(move("m1", instance_of("i1"), source, server_group=TOGETHER))
    assert removed(scheduler.refusal(select("i2", server_group=TOGETHER))) == {"server_group_affinity": 2}
    end(rig, "m1", instance_of("i1"), "confirm", source, claimed)
    assert build(rig, scheduler, "i2", server_group=TOGETHER).service_host == claimed.service_host


def test_one_of_several_members_cannot_move(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler()
    source = build(rig, scheduler, "i1", server_group=TOGETHER)
    build(rig, scheduler, "i2", server_group=TOGETHER)
    told = scheduler.refusal(move("m1", instance_of("i1"), source, server_group=TOGETHER))
    assert removed(told) == {"leaving": 1, "server_group_affinity": 1}
    assert held(rig, instance_of("i1")).keys() == {source.compute_node_uuid}


def test_members_of_a_host_that_is_forced_down_are_evacuated_to_one_other_host(rig: Rig) -> None:
    rig.add_hosts(range(4))
    scheduler = rig.scheduler()
    sources = [build(rig, scheduler, f"i{number}", server_group=TOGETHER) for number in range(3)]
    rig.set_host(sources[0].service_host, forced_down=True)
    moved = [
        scheduler.select(move(f"m{n}", instance_of(f"i{n}"), source, "evacuation", server_group=TOGETHER))
        for n, source in enumerate(sources)
    ]
    assert len({host for answer in moved for host in hosts_of(answer)} - {sources[0].service_host}) == 1


# --- Rules in the store ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "expected"), [(APART, "host1"), (TOGETHER, "host0")])
def test_without_the_filters_the_store_refuses_the_claim_and_another_host_is_claimed(
    rig: Rig, asked: ServerGroup, expected: str
) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler(plugins=without_group_filters())
    first = build(rig, scheduler, "i1", server_group=asked, force_hosts=("host0",))
    assert first.service_host == "host0"
    ignored = () if asked is APART else ("host2",)
    answer = scheduler.select(select("i2", num_alternates=2, server_group=asked, ignore_hosts=ignored))
    assert hosts_of(answer) == [expected]


def test_without_the_filters_a_member_that_fits_on_no_host_is_refused(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler(plugins=without_group_filters())
    for number in range(2):
        build(rig, scheduler, f"i{number}", server_group=APART)
    with pytest.raises((errors.NoValidHost, errors.ClaimContention)):
        scheduler.select(select("i2", server_group=APART))
    assert len(rig.audit().holders) == 2


def test_a_group_that_has_another_rule_in_the_store_is_an_invalid_request(rig: Rig) -> None:
    rig.add_hosts([0])
    rig.placement.call(
        CreateServerGroup(request_id=rig.fresh(), group=group("anti-affinity", 2), name="web", project_id="project")
    )
    scheduler = rig.scheduler()
    for other in (TOGETHER, APART, group("soft-affinity")):
        for message in (select("r1", server_group=other), select("r2", vcpus=99, server_group=other)):
            with pytest.raises(errors.InvalidRequest) as caught:
                scheduler.select(message)
            assert caught.value.path == "$.request_spec.server_group"
    build(rig, scheduler, "i1", server_group=group("anti-affinity", 2))


def test_many_schedulers_place_first_members_of_one_affinity_group_together(rig: Rig) -> None:
    rig.add_hosts(range(8))
    schedulers = [rig.scheduler() for _ in range(4)]

    def place(number: int) -> str:
        message = select(f"i{number}", server_group=TOGETHER)
        [[claimed]] = schedulers[number % len(schedulers)].select(message)
        return claimed.service_host

    with ThreadPoolExecutor(len(schedulers)) as pool:
        assert len(set(pool.map(place, range(8)))) == 1


def test_a_repeated_request_of_a_member_gets_the_same_answer(rig: Rig) -> None:
    rig.add_hosts([0])
    message = select("i1", server_group=APART)
    answer = rig.scheduler().select(message)
    assert rig.scheduler().select(message) == answer
    with pytest.raises(errors.RequestIdReused):
        rig.scheduler().select(select("i1", server_group=group("anti-affinity", number=2)))


def test_a_released_member_can_be_placed_on_the_same_host_again(rig: Rig) -> None:
    rig.add_hosts([0])
    scheduler = rig.scheduler()
    build(rig, scheduler, "i1", accepted=False, server_group=APART)
    rig.release(instance_of("i1"))
    again = msgspec.structs.replace(
        select("i1 again", server_group=APART),
        instance_uuids=(instance_of("i1"),),
        consumer_generations={instance_of("i1"): consumer(rig, instance_of("i1")).generation},
    )
    assert hosts_of(scheduler.select(again)) == ["host0"]


# --- Soft rules -----------------------------------------------------------------------------------------------------


def test_soft_rules_are_kept_while_there_is_room_and_refuse_no_request(rig: Rig) -> None:
    rig.add_hosts(range(2), vcpus=6)
    scheduler = rig.scheduler(plugins=funnel((0.0, 0.0, 0.0)))
    near, apart = group("soft-affinity", number=3), group("soft-anti-affinity", number=4)
    assert len(set(hosts_of(scheduler.select(select("r1", count=2, server_group=near))))) == 1
    assert len(set(hosts_of(scheduler.select(select("r2", count=2, server_group=apart))))) == 2
    # There is room for two more servers, one on each host, whatever the rule.
    assert scheduler.used(0) + scheduler.used(1) == 8
    assert len(scheduler.select(select("r3", count=2, server_group=near))) == 2


def test_a_soft_rule_counts_more_than_the_room_that_single_servers_take(rig: Rig) -> None:
    rig.add_hosts(range(10))
    near, apart = group("soft-affinity", number=3), group("soft-anti-affinity", number=4)
    scheduler = rig.scheduler()
    [host] = set(hosts_of(scheduler.select(select("r1", count=6, server_group=near))))
    # Members of earlier requests count as well.
    assert hosts_of(scheduler.select(select("r2", server_group=near))) == [host]
    rig.add_hosts([10], vcpus=128)
    assert len(set(hosts_of(scheduler.select(select("r3", count=6, server_group=apart))))) == 6
