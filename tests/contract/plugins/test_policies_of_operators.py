"""Test plug-ins that operators enable in a whole scheduler, and the refusal of requests that they cannot parse."""

from collections.abc import Mapping

import pytest
from support.scheduler.builders import CELLS, select
from support.scheduler.rig import Rig, report, rig_on_each_store

from moorage import errors
from moorage.config import options
from moorage.model import Destination, Flavor, Selection
from scheduler.decide.funnel import Funnel
from scheduler.plugins.loading import load_filters, load_weighers

rig = rig_on_each_store


def policy(*more_filters: str) -> Funnel:
    """Return a funnel of the filters and weighers enabled by default, with some more filters."""
    conf = options.new()
    return Funnel(
        load_filters(conf, [*conf.scheduler.enabled_filters, *more_filters]),
        load_weighers(conf, conf.scheduler.enabled_weighers),
    )


def host_of(answer: list[list[Selection]]) -> str:
    [[claimed, *_]] = answer
    return claimed.service_host


def asking_for(extra_specs: Mapping[str, str]) -> Flavor:
    return Flavor(name="m1.small", vcpus=1, memory_mb=1, extra_specs=dict(extra_specs))


def test_attributes_that_drivers_report_decide_which_hosts_pass(rig: Rig) -> None:
    rig.add_hosts([1], attributes={"gpu": "t4"})
    rig.add_hosts([2], attributes={"gpu": "a100"})
    scheduler = rig.scheduler(plugins=policy("json"))
    fast = asking_for({"capabilities:gpu": "a100"})
    assert {host_of(scheduler.select(select(f"r{number}", flavor=fast))) for number in range(4)} == {"host2"}
    query = {"query": '["in", "$gpu", "t4", "t5"]'}
    assert host_of(scheduler.select(select("r5", scheduler_hints=query))) == "host1"
    # A new report counts at once.
    rig.report([report(2, attributes={"gpu": "t4"})], ["host2"])
    with pytest.raises(errors.NoValidHost, match="capabilities"):
        scheduler.select(select("r6", flavor=fast))


def test_hints_place_servers_on_the_host_of_another_server_or_on_other_hosts(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler(plugins=policy())
    first = select("first")
    home = host_of(scheduler.select(first))
    [uuid] = first.instance_uuids
    for number in range(3):
        assert host_of(scheduler.select(select(f"s{number}", scheduler_hints={"same_host": uuid}))) == home
        assert host_of(scheduler.select(select(f"d{number}", scheduler_hints={"different_host": uuid}))) != home
    # No host has a server that is not placed.
    rig.release(uuid)
    with pytest.raises(errors.NoValidHost):
        scheduler.select(select("s9", scheduler_hints={"same_host": uuid}))
    scheduler.select(select("d9", scheduler_hints={"different_host": uuid}))


def test_a_server_that_may_leave_its_cell_leaves_it_when_the_cell_is_full(rig: Rig) -> None:
    rig.add_hosts([1], cell=0, vcpus=4)
    rig.add_hosts([2], cell=1, vcpus=64, memory_mb=10**6)
    scheduler = rig.scheduler(plugins=policy())

    def asked(request_id: str, *, may_leave: bool) -> str:
        wanted = Destination(cell=CELLS[0], allow_cross_cell_move=may_leave)
        return host_of(scheduler.select(select(request_id, requested_destination=wanted)))

    assert [asked("r1", may_leave=True), asked("r2", may_leave=False)] == ["host1", "host1"]
    with pytest.raises(errors.NoValidHost):
        asked("r3", may_leave=False)
    assert asked("r4", may_leave=True) == "host2"


INVALID: list[tuple[dict[str, str], dict[str, str], str]] = [
    ({"same_host": "host1"}, {}, "$.scheduler_hints.same_host"),
    ({"different_host": "[1]"}, {}, "$.scheduler_hints.different_host"),
    ({"build_near_host_ip": "here"}, {}, "$.scheduler_hints.build_near_host_ip"),
    ({"query": '["and", ["~", "$a", 1]]'}, {}, "$.scheduler_hints.query[1][0]"),
    ({}, {"capabilities:gpu": "<is> t4"}, "$.flavor.extra_specs['capabilities:gpu']"),
]


def test_a_hint_that_an_enabled_filter_cannot_parse_is_refused_even_without_hosts(rig: Rig) -> None:
    scheduler = rig.scheduler(plugins=policy("json"))
    for hints, extra_specs, path in INVALID:
        with pytest.raises(errors.InvalidRequest) as caught:
            scheduler.select(select("r1", scheduler_hints=hints, flavor=asking_for(extra_specs)))
        assert caught.value.path == path
    rig.add_hosts([1])
    # Without the filter, the query is not read, and a stored answer remains valid.
    unread = select("r2", scheduler_hints={"query": "["})
    answer = rig.scheduler(plugins=policy()).select(unread)
    assert host_of(answer) == "host1"
    assert rig.scheduler(plugins=policy("json")).select(unread) == answer
    assert len(rig.audit().holders) == 1
