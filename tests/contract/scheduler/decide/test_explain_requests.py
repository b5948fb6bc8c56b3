"""Test that `explain` shows the decision that would be made, with its reasons, on SQLite and on MariaDB."""

import pytest
from support.scheduler.builders import CELLS, funnel, instance_uuids, select, spec
from support.scheduler.moving_builders import build, instance_of, move
from support.scheduler.rig import OneScheduler, Rig

from filters.io_ops import IoOpsFilter
from filters.num_instances import NumInstancesFilter
from moorage import errors
from moorage.ids import derived
from moorage.messages import ExplainRequest, ReportHosts, SelectDestinations
from moorage.messages.wire import decode, encode
from moorage.model import Destination, Explanation, HostLoad, Image, RankedHost, RequestSpec, ServerGroup
from moorage.plugin import Filter, Host
from scheduler.decide.funnel import Funnel
from scheduler.plugins.loading import Named, Weighted
from weighers.image_properties import ImagePropertiesWeigher


def explain(scheduler: OneScheduler, request: RequestSpec | None = None, **asked: object) -> Explanation:
    return scheduler.explain(ExplainRequest(request_spec=request or spec(), **asked))  # type: ignore[arg-type]


def asked_for(request_id: str, **changes: object) -> SelectDestinations:
    message = select(request_id, **changes)  # type: ignore[arg-type]
    return SelectDestinations(
        request_id=message.request_id,
        request_spec=message.request_spec,
        instance_uuids=message.instance_uuids,
        num_alternates=0,
        explain=True,
    )


# --- With a decision --------------------------------------------------------------------------------------------------


def test_a_claimed_host_has_an_explanation_only_if_the_request_asks_for_it(rig: Rig) -> None:
    rig.add_hosts(range(3))
    rig.add_hosts([3], vcpus=1)
    scheduler = rig.scheduler()
    [[claimed, *alternates]] = scheduler.select(select("r1", num_alternates=2))
    assert claimed.explanation is None
    [[claimed]] = scheduler.select(asked_for("r2"))
    told = claimed.explanation
    assert told is not None
    assert (told.hosts, told.feasible, told.chosen) == (4, 3, claimed.service_host)
    assert told.summary() == "3 of 4 hosts: 1 short of VCPU, nearest host3 by 1"
    assert all(alternate.explanation is None for alternate in alternates)
    assert scheduler.select(asked_for("r2")) == [[claimed]], "it is stored with the answer"


def test_the_weight_of_a_host_is_the_sum_of_the_scores_of_its_weighers(rig: Rig) -> None:
    for number in range(4):
        rig.add_hosts([number], vcpus=4 + number, memory_mb=8192 - 1024 * number)
    told = explain(rig.scheduler())
    assert [host.rank for host in told.top_hosts] == [1, 2, 3, 4]
    assert told.top_hosts[0].host == told.chosen
    for host in told.top_hosts:
        assert [score.weigher for score in host.scores] == ["ram", "cpu", "disk"]
        assert host.weight == pytest.approx(sum(score.counts for score in host.scores))
        assert host.cell_uuid == CELLS[0]
    assert _score(told.top_hosts, "host3", "cpu") == (7.0, 1.0)
    assert _score(told.top_hosts, "host3", "ram") == (5120.0, 0.0)


def _score(hosts: tuple[RankedHost, ...], name: str, weigher: str) -> tuple[float, float]:
    [found] = [each for host in hosts if host.host == name for each in host.scores if each.weigher == weigher]
    return found.score, found.normalised


def test_each_instance_is_explained_after_the_claims_of_the_instances_before_it(rig: Rig) -> None:
    rig.add_hosts([0, 1], vcpus=2)
    [[first], [second]] = rig.scheduler().select(asked_for("r1", count=2))
    assert first.explanation is not None
    assert second.explanation is not None
    assert (first.explanation.feasible, second.explanation.feasible) == (2, 1)
    assert second.explanation.chosen == second.service_host != first.service_host


def test_more_explanations_than_fit_into_an_answer_are_refused_and_nothing_is_claimed(rig: Rig) -> None:
    rig.add_hosts([0], vcpus=1000, memory_mb=2**30)
    scheduler = rig.scheduler()
    with pytest.raises(errors.InvalidRequest) as refused:
        scheduler.select(asked_for("r1", count=100, root_gb=0))
    assert refused.value.path == "$.explain"
    assert scheduler.used(0) == 0
    assert all(one.explanation for [one] in scheduler.select(asked_for("r2", count=99, root_gb=0)))


def test_an_explanation_is_the_same_after_it_was_encoded_and_decoded(rig: Rig) -> None:
    rig.add_hosts(range(3))
    told = explain(rig.scheduler(), hosts=("host1",), what_if=True)
    assert decode(Explanation, encode(told)) == told


# --- Without a decision -----------------------------------------------------------------------------------------------


def test_an_explanation_names_a_host_with_room_or_none_and_claims_nothing(rig: Rig) -> None:
    rig.add_hosts(range(5), vcpus=4)
    taker = rig.take(3, vcpus=1)
    scheduler = rig.scheduler()
    told = explain(scheduler)
    assert told.chosen in {f"host{number}" for number in (0, 1, 2, 4)}
    assert explain(scheduler, spec(vcpus=64)).chosen is None
    assert [holder.uuid for holder in rig.audit().holders] == [taker]
    assert scheduler.used(0) == 0


def test_the_view_catches_up_with_the_store_before_the_answer_is_that_no_host_is_valid(rig: Rig) -> None:
    rig.add_hosts([1], vcpus=2)
    taker = rig.take(1, vcpus=2)
    scheduler = rig.scheduler(max_age=3600.0)
    rig.release(taker)
    assert explain(scheduler).chosen == "host1"


def test_each_named_host_is_explained_whether_it_is_chosen_feasible_or_refused(rig: Rig) -> None:
    rig.add_hosts([0], vcpus=16)
    rig.add_hosts([1], vcpus=8)
    rig.add_hosts([2], vcpus=1, memory_mb=64, availability_zone="b")
    told = explain(rig.scheduler(), spec(availability_zone="nova"), hosts=("host0", "HOST1", "host2"))
    assert told.named_hosts == {
        "host0": "is the chosen host",
        "HOST1": "could serve the request: number 2 of 2 by weight",
        "host2": "is in availability zone b; "
        "has not enough room: VCPU, 2 asked, 1 free; MEMORY_MB, 2,048 asked, 64 free",
    }
    assert [(host.host, host.rank) for host in told.named_scores] == [("host0", 1), ("host1", 2)]


def test_an_unknown_host_or_cell_and_contradictory_arguments_are_refused(rig: Rig) -> None:
    rig.add_hosts([0])
    scheduler = rig.scheduler()
    with pytest.raises(errors.HostNotFound):
        explain(scheduler, hosts=("host0", "nothing"))
    with pytest.raises(errors.CellNotFound):
        explain(scheduler, spec(requested_destination=Destination(cell=derived("no", "cell"))))
    with pytest.raises(errors.InvalidRequest):
        explain(scheduler, moving="resize")
    with pytest.raises(errors.InvalidRequest):
        explain(scheduler, instances=2, instance_uuid=derived("some", "instance"))


class Grumpy(Filter):
    """Refuses every host, and raises when it is asked why."""

    reason = "is refused by a grumpy filter"

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return False

    def why(self, host: Host, request: RequestSpec) -> str:
        raise ZeroDivisionError(host.service_host)


def test_a_filter_that_cannot_say_why_does_not_break_the_explanation(rig: Rig) -> None:
    rig.add_hosts([0, 1])
    told = explain(rig.scheduler(plugins=Funnel([Named("grumpy", Grumpy({}))], [])), hosts=("host0",))
    assert told.summary() == ("0 of 2 hosts: 2 refused by a grumpy filter; host0 is refused by a grumpy filter")
    assert set(told.nearest_hosts.values()) == {Grumpy.reason}


# --- For an existing instance -----------------------------------------------------------------------------------------


def test_allocations_of_the_instance_count_as_free_for_it(rig: Rig) -> None:
    rig.add_hosts([0], vcpus=2)
    scheduler = rig.scheduler()
    scheduler.select(select("r1"))
    [uuid] = instance_uuids("r1", 1)
    assert explain(scheduler).chosen is None
    told = explain(scheduler, instance_uuid=uuid)
    assert (told.chosen, told.feasible) == ("host0", 1)
    assert explain(scheduler, spec(vcpus=3), instance_uuid=uuid).chosen is None


def test_an_instance_does_not_count_among_the_servers_of_its_own_host(rig: Rig) -> None:
    rig.add_hosts([0])
    scheduler = rig.scheduler(plugins=funnel(num_instances=NumInstancesFilter({"max_instances_per_host": 1})))
    claimed = build(rig, scheduler, "r1", vcpus=1)
    uuid = instance_of("r1")
    assert explain(scheduler).chosen is None
    assert explain(scheduler, instance_uuid=uuid).chosen == "host0"
    # Nor where it is resized in place, which leaves the number of servers as it is.
    assert explain(scheduler, instance_uuid=uuid, moving="resize").chosen == "host0"
    [[resized]] = scheduler.select(move("r2", uuid, claimed, "resize", vcpus=2))
    assert resized.service_host == "host0"
    assert int(scheduler.host_cache.snapshot().instances[0]) == 1


def test_an_instance_under_way_does_not_count_in_the_load_of_its_own_host(rig: Rig) -> None:
    rig.add_hosts([0])
    scheduler = rig.scheduler(plugins=funnel(io_ops=IoOpsFilter({"max_io_ops_per_host": 2})))
    build(rig, scheduler, "r1")
    uuid = instance_of("r1")

    def report(io_ops: int, at: float) -> None:
        loads = {"host0": HostLoad(io_ops=io_ops)}
        message = ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], loads=loads, loads_at=at)
        rig.host_reports.report_hosts(message)

    report(2, at=1.0)
    assert explain(scheduler).chosen is None
    assert explain(scheduler, instance_uuid=uuid, under_way=True).chosen == "host0"
    for known in (None, False):
        told = explain(scheduler, instance_uuid=uuid, under_way=known, hosts=("host0",))
        assert told.named_hosts == {"host0": "has 2 servers under way, and may have 2"}
    report(3, at=2.0)
    assert explain(scheduler, instance_uuid=uuid, under_way=True).chosen is None
    # The cell may not have reported it yet.
    report(0, at=3.0)
    assert explain(scheduler, instance_uuid=uuid, under_way=True).chosen == "host0"
    assert scheduler.host_cache.snapshot().io_ops.tolist() == [0]


def test_the_image_of_an_instance_does_not_count_on_its_own_host(rig: Rig) -> None:
    rig.add_hosts([0, 1])
    weigher = Weighted("image_properties", ImagePropertiesWeigher({"image_props_weight_setting": []}), 1.0)
    scheduler = rig.scheduler(plugins=Funnel(funnel().filters, [weigher]))
    image = Image(properties={"os_distro": "debian", "hw_vif_model": "virtio"})
    here = build(rig, scheduler, "r1", image=image).service_host
    loads = {here: HostLoad(image_properties={"os_distro=debian": 2, "os_distro=alpine": 4})}
    rig.host_reports.report_hosts(ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], loads=loads, loads_at=1.0))
    told = explain(scheduler, spec(image=image), instance_uuid=instance_of("r1"), hosts=(here,))
    assert [score.score for host in told.named_scores for score in host.scores] == [1.0]
    told = explain(scheduler, spec(image=image), hosts=(here,))
    assert [score.score for host in told.named_scores for score in host.scores] == [2.0]
    assert scheduler.host_cache.snapshot().servers_with("os_distro", "debian").sum() == 2


def test_an_instance_that_moves_leaves_its_host_unless_it_is_resized(rig: Rig) -> None:
    rig.add_hosts([0, 1], vcpus=2)
    scheduler = rig.scheduler()
    [[claimed]] = scheduler.select(select("r1"))
    [uuid] = instance_uuids("r1", 1)
    told = explain(scheduler, instance_uuid=uuid, moving="live-migration", hosts=(claimed.service_host,))
    assert told.chosen not in (None, claimed.service_host)
    assert told.named_hosts[claimed.service_host].startswith("is the host that the server is to leave")
    # Resized in place, it would hold the old size until it is confirmed.
    assert explain(scheduler, spec(vcpus=1), instance_uuid=uuid, moving="resize").feasible == 1
    with pytest.raises(errors.ConsumerNotFound):
        explain(scheduler, instance_uuid=derived("no", "instance"), moving="resize")


def test_the_other_members_of_a_group_count_and_the_instance_itself_does_not(rig: Rig) -> None:
    rig.add_hosts([0, 1])
    scheduler = rig.scheduler()
    group = ServerGroup(uuid=derived("tests", "group"), policy="anti-affinity")
    scheduler.select(select("r1", count=2, server_group=group))
    assert explain(scheduler, spec(server_group=group)).chosen is None
    [uuid, _] = instance_uuids("r1", 2)
    assert explain(scheduler, spec(server_group=group), instance_uuid=uuid).feasible == 1


# --- What if ----------------------------------------------------------------------------------------------------------


def test_what_if_counts_how_many_more_instances_fit_in_all_and_by_cell(rig: Rig) -> None:
    rig.add_hosts([0, 1], vcpus=5)
    rig.add_hosts([2], vcpus=64, memory_mb=4096, cell=1)
    rig.take(0, vcpus=2)
    counted = explain(rig.scheduler(), what_if=True).what_if
    assert counted is not None
    assert (counted.more, counted.exact) == (1 + 2 + 2, True)
    assert counted.cells == {CELLS[0]: 3, CELLS[1]: 2}
    assert explain(rig.scheduler()).what_if is None


def test_what_if_counts_none_where_the_request_does_not_fit(rig: Rig) -> None:
    rig.add_hosts([0], vcpus=1)
    told = explain(rig.scheduler(), what_if=True)
    assert told.what_if is not None
    assert (told.what_if.more, told.what_if.cells, told.what_if.exact) == (0, {}, True)


def test_a_named_host_that_is_disabled_or_forced_down_is_refused_with_that_reason(rig: Rig) -> None:
    rig.add_hosts([0, 1])
    rig.set_host("host0", disabled=True)
    rig.set_host("host1", forced_down=True)
    told = explain(rig.scheduler(), hosts=("host0", "host1"))
    assert told.named_hosts == {"host0": "is disabled", "host1": "is forced down"}
    assert told.summary().startswith("0 of 2 hosts: 2 down or disabled; host0 is disabled")
