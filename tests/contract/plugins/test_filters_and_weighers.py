"""Test the contract of filters and weighers with each installed entry point, of Moorage and of other packages."""

import functools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from stevedore import ExtensionManager
from support.scheduler.builders import CELLS, host_cache, host_row, provider, spec
from support.scheduler.plugin_strategies import GROUP, configured, requests, snapshots
from support.scheduler.trees import granular_requests

from moorage import errors
from moorage.config import options
from moorage.model import Destination, RequestSpec, ServerGroup
from moorage.plugin import Filter, Weigher
from moorage.testing import answers_of, scores_of, unchanged
from moorage.testing.builders import inventory
from placement_store.server_groups.rows import OccupiedRoot
from scheduler.plugins.loading import list_opts, load_filters, load_weighers
from scheduler.view.snapshot import Snapshot

FILTERS = ExtensionManager[Any]("moorage.filters").names()
WEIGHERS = ExtensionManager[Any]("moorage.weighers").names()

with_settings = st.sampled_from([options.new, configured])


@functools.cache
def a_filter(name: str, conf: Any = options.new) -> Filter:
    return load_filters(conf(), [name])[0].plugin


@functools.cache
def a_weigher(name: str, conf: Any = options.new) -> Weigher:
    return load_weighers(conf(), [name])[0].plugin


# One example for all plug-ins: to draw it takes far longer than to call all of them.


@settings(deadline=None, max_examples=150)
@given(view=snapshots(), request=requests | granular_requests(), conf=with_settings)
def test_the_mask_of_a_filter_has_its_answer_for_each_single_host(
    view: Snapshot, request: RequestSpec, conf: Any
) -> None:
    with unchanged(view, request, "one of the filters"):
        for name in FILTERS:
            answers_of(a_filter(name, conf), view, request)


@settings(deadline=None, max_examples=150)
@given(view=snapshots(), request=requests | granular_requests(), conf=with_settings)
def test_the_scores_of_a_weigher_have_its_weight_for_each_single_host(
    view: Snapshot, request: RequestSpec, conf: Any
) -> None:
    with unchanged(view, request, "one of the weighers"):
        for name in WEIGHERS:
            # The weight is not a number if a host lacks what the weigher needs.
            scores_of(a_weigher(name, conf), view, request, finite=False)


def answer_of(plugin: Filter | Weigher, view: Snapshot, request: RequestSpec) -> str | None:
    """Return what a plug-in says about all hosts, or the error that it raises; null if it is not concerned."""
    try:
        if not plugin.concerns(request):
            return None
        answers = plugin.mask(view, request) if isinstance(plugin, Filter) else plugin.scores(view, request)
    except (ValueError, errors.MoorageError) as fault:
        return repr(fault)
    return repr(answers.tolist())


@settings(deadline=None, max_examples=150)
@given(view=snapshots(), request=requests, conf=with_settings)
def test_a_built_in_plug_in_depends_on_a_server_group_only_if_it_concerns_no_request_without_one(
    view: Snapshot, request: RequestSpec, conf: Any
) -> None:
    # Evaluations are shared by the requests of all groups and of none.
    without_group, without_members = structs.replace(request, server_group=None), replace(view, members=None)
    plugins: list[Filter | Weigher] = [
        *(a_filter(name, conf) for name in FILTERS),
        *(a_weigher(name, conf) for name in WEIGHERS),
    ]
    for plugin in plugins:
        if type(plugin).__module__.partition(".")[0] in ("filters", "weighers"):
            by_itself = answer_of(plugin, without_members, without_group)
            assert by_itself is None or answer_of(plugin, view, request) == by_itself


@pytest.mark.parametrize("name", FILTERS)
def test_the_reason_of_a_filter_continues_a_sentence_that_begins_with_the_host(name: str) -> None:
    reason = a_filter(name).reason
    assert reason != Filter.reason
    assert reason.split()[0] in {"is", "has", "was", "does"}


# --- The plug-ins of Moorage ----------------------------------------------------------------------------------------


def left(name: str, view: Snapshot, **request: Any) -> list[str]:
    mask = a_filter(name).mask(view, spec(**request))
    return [host.service_host for host, passes in zip(view.hosts, mask, strict=True) if passes]


def test_compute_removes_hosts_that_are_down_or_disabled() -> None:
    rows = [host_row(0), host_row(1, up=False), host_row(2, disabled=True), host_row(3, forced_down=True)]
    assert left("compute", host_cache(rows).snapshot()) == ["host0"]


def test_availability_zone_removes_hosts_of_other_zones() -> None:
    view = host_cache([host_row(0, availability_zone="a"), host_row(1, availability_zone="b")]).snapshot()
    assert left("availability_zone", view) == ["host0", "host1"]
    assert left("availability_zone", view, availability_zone="b") == ["host1"]
    assert left("availability_zone", view, availability_zone="B") == []


def test_destination_keeps_the_hosts_nodes_and_cells_that_the_request_names() -> None:
    view = host_cache([host_row(0), host_row(1, cell_uuid=CELLS[1]), host_row(2)]).snapshot()
    assert left("destination", view) == ["host0", "host1", "host2"]
    assert left("destination", view, ignore_hosts=("HOST0",)) == ["host1", "host2"]
    assert left("destination", view, force_hosts=("Host0", "host2"), ignore_hosts=("host2",)) == ["host0"]
    assert left("destination", view, force_hosts=("host0", "host1"), force_nodes=("NODE1",)) == ["host1"]
    assert left("destination", view, requested_destination=Destination(host="HOST2")) == ["host2"]
    assert left("destination", view, requested_destination=Destination(host="host2", node="node1")) == []
    uuid = view.hosts[1].compute_node_uuid
    assert left("destination", view, requested_destination=Destination(node=uuid)) == ["host1"]
    assert left("destination", view, requested_destination=Destination(node_uuid=uuid)) == ["host1"]
    assert left("destination", view, requested_destination=Destination(node="node2", node_uuid=uuid)) == []
    assert left("destination", view, requested_destination=Destination(cell=CELLS[1])) == ["host1"]
    assert left("destination", view, requested_destination=Destination()) == ["host0", "host1", "host2"]


def test_resources_keeps_hosts_with_capacity_units_and_steps_for_the_request() -> None:
    rows = [host_row(number) for number in range(6)]
    memory = {"MEMORY_MB": inventory(4096)}
    providers = [
        provider(rows[0], VCPU=inventory(4, used=2), **memory),
        provider(rows[1], VCPU=inventory(4, used=3), **memory),
        provider(rows[2], VCPU=inventory(4, used=4, reserved=2, allocation_ratio=3.0), **memory),
        provider(rows[3], VCPU=inventory(4, max_unit=1), **memory),
        provider(rows[4], VCPU=inventory(6, min_unit=3, step_size=3), **memory),
        provider(rows[5], **memory),
    ]
    view = host_cache(rows, providers).snapshot()
    assert left("resources", view, vcpus=2, root_gb=0) == ["host0", "host2"]
    assert left("resources", view, vcpus=3, root_gb=0) == ["host4"]
    assert left("resources", view, vcpus=2, root_gb=1) == []


def in_group(policy: Any, most: int = 1) -> ServerGroup:
    return ServerGroup(uuid=GROUP, policy=policy, max_server_per_host=most)


def members_on(view: Snapshot, **members: int) -> Snapshot:
    """Return the view with numbers of members of a group on hosts; `_down` marks a host that is forced down."""
    nodes = {host.service_host: host.compute_node_uuid for host in view.hosts}
    return view.with_members(
        {
            nodes.get(name.removesuffix("_down"), name): OccupiedRoot(count, forced_down=name.endswith("_down"))
            for name, count in members.items()
        }
    )


def test_affinity_keeps_the_host_of_all_other_members() -> None:
    view, group = host_cache([host_row(number) for number in range(3)]).snapshot(), in_group("affinity")

    def hosts_left(**members: int) -> list[str]:
        return left("server_group_affinity", members_on(view, **members), server_group=group)

    assert hosts_left() == ["host0", "host1", "host2"]
    assert hosts_left(host1=2) == ["host1"]
    # One of them is moving: until the move has ended, no member can join.
    assert hosts_left(host1=1, host2=1) == []
    assert hosts_left(nowhere_known=1) == []
    # Members on a host that is forced down do not count.
    assert hosts_left(host1_down=2) == ["host0", "host1", "host2"]
    assert hosts_left(host1_down=2, host2=1) == ["host2"]
    assert left("server_group_affinity", members_on(view, host1=1), server_group=in_group("soft-affinity")) == [
        "host0",
        "host1",
        "host2",
    ]


def test_anti_affinity_keeps_hosts_with_fewer_members_than_the_limit() -> None:
    view = host_cache([host_row(number) for number in range(3)]).snapshot()
    occupied_view = members_on(view, host0=1, host1_down=2)
    name, group = "server_group_anti_affinity", in_group("anti-affinity")
    assert left(name, occupied_view, server_group=group) == ["host2"]
    assert left(name, occupied_view, server_group=in_group("anti-affinity", 2)) == ["host0", "host2"]
    assert left(name, view, server_group=group) == ["host0", "host1", "host2"]
    assert left(name, occupied_view, server_group=in_group("affinity")) == ["host0", "host1", "host2"]


def test_the_soft_weighers_count_members_only_for_their_own_policy() -> None:
    view = members_on(host_cache([host_row(number) for number in range(3)]).snapshot(), host0=1, host2=3)
    near, apart = spec(server_group=in_group("soft-affinity")), spec(server_group=in_group("soft-anti-affinity"))
    assert a_weigher("server_group_soft_affinity").scores(view, near).tolist() == [1.0, 0.0, 3.0]
    assert a_weigher("server_group_soft_affinity").scores(view, apart).tolist() == [0.0, 0.0, 0.0]
    assert a_weigher("server_group_soft_anti_affinity").scores(view, apart).tolist() == [-1.0, 0.0, -3.0]
    assert a_weigher("server_group_soft_anti_affinity").scores(view, near).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("name", "resource_class"), [("ram", "MEMORY_MB"), ("cpu", "VCPU"), ("disk", "DISK_GB")])
def test_ram_cpu_and_disk_weigh_the_free_amount_of_their_class(name: str, resource_class: str) -> None:
    rows = [host_row(number) for number in range(3)]
    providers = [
        provider(rows[0], **{resource_class: inventory(10, used=4, allocation_ratio=2.0)}),
        provider(rows[1], **{resource_class: inventory(10, used=12)}),
        provider(rows[2], CUSTOM_OTHER=inventory(99)),
    ]
    assert a_weigher(name).scores(host_cache(rows, providers).snapshot(), spec()).tolist() == [16.0, -2.0, 0.0]


# --- Loading --------------------------------------------------------------------------------------------------------


def test_plugins_are_loaded_in_the_order_in_which_they_are_configured() -> None:
    assert [named.name for named in load_filters(options.new(), ["resources", "compute"])] == ["resources", "compute"]
    assert [weighted.name for weighted in load_weighers(options.new(), ["disk", "ram"])] == ["disk", "ram"]


def test_an_unknown_name_is_refused_with_the_known_names() -> None:
    with pytest.raises(errors.UnknownPlugin) as caught:
        load_filters(options.new(), ["compute", "phase_of_the_moon"])
    assert caught.value.name == "phase_of_the_moon"
    assert {"compute", "availability_zone", "destination", "resources"} <= set(caught.value.known.split(", "))
    with pytest.raises(errors.UnknownPlugin, match=r"no weigher named phase_of_the_moon; the known ones are: .*cpu.*"):
        load_weighers(options.new(), ["phase_of_the_moon"])


def test_a_plugin_that_is_enabled_twice_is_refused() -> None:
    with pytest.raises(errors.ConfigurationError, match="enabled twice"):
        load_filters(options.new(), ["compute", "compute"])


def test_each_weigher_has_an_option_for_its_multiplier(tmp_path: Any) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text("[weighers]\nram_weight_multiplier = -2.5\n")
    multipliers = {weigher.name: weigher.multiplier for weigher in load_weighers(options.new(files=[file]), WEIGHERS)}
    assert multipliers["ram"] == -2.5
    assert multipliers["cpu"] == 1.0
    file.write_text("[weighers]\nram_weight_multiplier = much\n")
    with pytest.raises(errors.ConfigurationError, match="ram_weight_multiplier"):
        load_weighers(options.new(files=[file]), WEIGHERS)


def test_the_options_of_all_plugins_are_listed_for_the_sample_configuration() -> None:
    listed = dict(list_opts())
    assert {f"{name}_weight_multiplier" for name in WEIGHERS} <= {option.name for option in listed["weighers"]}
    assert "filters" in listed
