"""Test select_destinations with request filters for flavors, images and host aggregates, on SQLite and on MariaDB."""

from collections.abc import Sequence
from typing import Any

import pytest
from support.scheduler.aggregate_builders import Aggregates
from support.scheduler.builders import instance_uuids
from support.scheduler.moving_builders import accept
from support.scheduler.rig import OneScheduler, Rig, node_uuid
from support.scheduler.worded_requests import asked, group

from moorage import errors
from moorage.ids import derived, fresh
from moorage.messages import SelectDestinations
from moorage.model import Explanation, Inventory, Move, ProviderReport, RequestSpec, Selection
from placement_store.candidates.tree import SHARES
from placement_store.db.names import sync

DEFAULT = ("extra_specs", "image_traits", "dedicated_cpus", "pci", "disabled_hosts")
TWO_NODES = {"hw:cpu_policy": "dedicated", "hw:numa_nodes": "2"}


@pytest.fixture
def rig(rig: Rig) -> Rig:
    sync(rig.database)
    return rig


def uuid_of(name: str) -> str:
    return derived("rig", "provider", name)


def provider(
    name: str, parent: str | None, traits: Sequence[str] = (), uuid: str | None = None, **totals: int
) -> ProviderReport:
    return ProviderReport(
        uuid=uuid or uuid_of(name),
        name=name,
        parent_provider_uuid=parent,
        inventories={name: Inventory(total=total) for name, total in totals.items()},
        traits=tuple(traits),
    )


def add_numa_host(rig: Rig, number: int, nodes: int = 2, pcpus: int = 4, memory_mb: int = 8192) -> None:
    """Add a host with CPUs and memory on NUMA nodes, and with a NIC."""
    rig.add_hosts([number])
    root, name = node_uuid(number), f"host{number}"
    rig.report_providers(
        provider(name, None, uuid=root, DISK_GB=500),
        *(
            provider(f"{name}_numa{n}", root, ["HW_NUMA_ROOT"], PCPU=pcpus, VCPU=4, MEMORY_MB=memory_mb)
            for n in range(nodes)
        ),
        provider(f"{name}_nic", root, SRIOV_NET_VF=8),
    )


def select(request_id: str, spec: RequestSpec, count: int = 1, alternates: int = 0, **more: Any) -> SelectDestinations:
    fields: dict[str, Any] = {
        "request_id": request_id,
        "request_spec": spec,
        "instance_uuids": instance_uuids(request_id, count),
        "num_alternates": alternates,
    }
    return SelectDestinations(**fields | more)


def amounts(selection: Selection) -> dict[str, dict[str, int]]:
    return {uuid: dict(part.resources) for uuid, part in selection.allocation_request.allocations.items()}


def hosts_for(scheduler: OneScheduler, spec: RequestSpec) -> set[str]:
    """Return all hosts that can serve a request."""
    [[claimed, *alternates]] = scheduler.select(select(fresh(), spec, alternates=20))
    return {selection.service_host for selection in (claimed, *alternates)}


def refusal(scheduler: OneScheduler, spec: RequestSpec) -> Explanation:
    return scheduler.refusal(select(fresh(), spec))


# --- CPUs and NUMA nodes ----------------------------------------------------------------------------------------------


def test_a_server_of_two_numa_nodes_holds_dedicated_cpus_of_two_numa_nodes_of_its_host(rig: Rig) -> None:
    add_numa_host(rig, 1)
    [[claimed]] = rig.scheduler(request_filters=DEFAULT).select(select("r1", asked(TWO_NODES)))
    half = {"PCPU": 2, "MEMORY_MB": 2048}
    assert amounts(claimed) == {
        node_uuid(1): {"DISK_GB": 20},
        uuid_of("host1_numa0"): half,
        uuid_of("host1_numa1"): half,
    }
    mappings = claimed.allocation_request.mappings
    assert {*mappings["_NUMA0"], *mappings["_NUMA1"]} == {uuid_of("host1_numa0"), uuid_of("host1_numa1")}


def test_a_server_of_two_numa_nodes_does_not_fit_on_a_host_with_one(rig: Rig) -> None:
    add_numa_host(rig, 1, nodes=1, pcpus=16)
    scheduler = rig.scheduler(request_filters=DEFAULT)
    told = refusal(scheduler, asked(TWO_NODES))
    assert [(count.name, count.removed) for count in told.filters if count.removed] == [("resources", 1)]
    assert hosts_for(scheduler, asked({**TWO_NODES, "hw:numa_nodes": "1"})) == {"host1"}


def test_groups_without_isolation_may_share_a_provider_although_numa_nodes_may_not(rig: Rig) -> None:
    add_numa_host(rig, 1)
    ports = {f"_port{number}": group({"SRIOV_NET_VF": 2}) for number in range(2)}
    spec = asked(TWO_NODES, groups=ports, group_policy="none")
    [[claimed]] = rig.scheduler(request_filters=DEFAULT).select(select("r1", spec))
    assert amounts(claimed)[uuid_of("host1_nic")] == {"SRIOV_NET_VF": 4}


def test_a_volume_backed_server_needs_of_the_root_only_the_required_traits(rig: Rig) -> None:
    for number, traits in ((1, []), (2, ["HW_CPU_X86_AVX2"])):
        add_numa_host(rig, number)
        rig.report_providers(provider(f"host{number}", None, traits, uuid=node_uuid(number), DISK_GB=500))
    spec = asked({**TWO_NODES, "trait:HW_CPU_X86_AVX2": "required"}, is_volume_backed=True)
    [[claimed]] = rig.scheduler(request_filters=DEFAULT).select(select("r1", spec))
    assert amounts(claimed).keys() == {uuid_of("host2_numa0"), uuid_of("host2_numa1")}


def test_each_instance_and_each_alternate_has_the_narrowed_resources_of_the_flavor(rig: Rig) -> None:
    for number in (1, 2, 3):
        add_numa_host(rig, number, pcpus=2)
    answer = rig.scheduler(request_filters=DEFAULT).select(select("r1", asked(TWO_NODES), count=2, alternates=1))
    for selections in answer:
        assert len(selections) == 2
        for selection in selections:
            assert {"PCPU": 2, "MEMORY_MB": 2048} in amounts(selection).values()
            assert selection.resources == {"PCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 20}


def test_a_move_claims_the_narrowed_resources_of_the_new_flavor(rig: Rig) -> None:
    add_numa_host(rig, 1)
    scheduler = rig.scheduler(request_filters=DEFAULT)
    [[source]] = scheduler.select(select("r1", asked({"hw:numa_nodes": "1"})))
    [instance] = instance_uuids("r1", 1)
    accept(rig, instance, source)
    resize = Move(
        migration_uuid=derived("tests", "migration"),
        kind="resize",
        claim_id=str(source.claim_id),
        held=source.allocation_request,
    )
    message = select(
        "m1",
        asked(TWO_NODES),
        instance_uuids=(instance,),
        consumer_generations={instance: source.consumer_generation},
        move=resize,
    )
    [[claimed]] = scheduler.select(message)
    assert source.resources == {"VCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 20}
    assert claimed.resources == {"PCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 20}


# --- Host aggregates --------------------------------------------------------------------------------------------------


def test_a_project_gets_the_hosts_of_its_current_aggregates(rig: Rig) -> None:
    rig.add_hosts([1, 2, 3])
    aggregates = Aggregates(rig)
    scheduler = rig.scheduler(request_filters=[*DEFAULT, "tenant_aggregate"])
    assert hosts_for(scheduler, asked()) == {"host1", "host2", "host3"}
    aggregates.create("for-project", "host1", filter_tenant_id="project")
    assert hosts_for(scheduler, asked()) == {"host1"}
    assert hosts_for(scheduler, asked(project_id="another")) == {"host1", "host2", "host3"}
    aggregates.add("for-project", "host2")
    assert hosts_for(scheduler, asked()) == {"host1", "host2"}
    aggregates.change("for-project", filter_tenant_id="another")
    assert hosts_for(scheduler, asked()) == {"host1", "host2", "host3"}
    assert hosts_for(scheduler, asked(project_id="another")) == {"host1", "host2"}
    aggregates.delete("for-project", force=True)
    assert hosts_for(scheduler, asked(project_id="another")) == {"host1", "host2", "host3"}


def test_a_project_whose_aggregate_has_no_hosts_gets_no_host(rig: Rig) -> None:
    rig.add_hosts([1])
    Aggregates(rig).create("for-project", filter_tenant_id="project")
    told = refusal(rig.scheduler(request_filters=["tenant_aggregate"]), asked())
    assert [(count.name, count.removed) for count in told.filters if count.removed] == [("aggregates", 1)]


def test_a_new_aggregate_is_read_before_the_answer_is_that_no_host_is_valid(rig: Rig) -> None:
    rig.add_hosts([1, 2])
    aggregates = Aggregates(rig)
    required: dict[str, Any] = {"request_filters": ["tenant_aggregate"], "tenant_aggregate_required": True}
    scheduler = rig.scheduler(max_age=3600.0, **required)
    told = refusal(scheduler, asked())
    assert [(count.name, count.hosts, count.removed) for count in told.filters] == [("tenant_aggregate", 2, 2)]
    assert "project project" in told.summary()
    aggregates.create("for-project", "host2", filter_tenant_id="project")
    assert hosts_for(scheduler, asked()) == {"host2"}


def test_the_aggregate_of_a_project_need_not_have_the_pool_of_its_hosts(rig: Rig) -> None:
    shared = derived("tests", "shared")
    rig.add_hosts([1, 2])
    nodes = [
        ProviderReport(
            uuid=node_uuid(number),
            name=f"host{number}",
            inventories={"VCPU": Inventory(total=16), "MEMORY_MB": Inventory(total=32768)},
            aggregates=(shared,),
        )
        for number in (1, 2)
    ]
    pool = ProviderReport(
        uuid=uuid_of("pool"),
        name="pool",
        inventories={"DISK_GB": Inventory(total=1000)},
        traits=(SHARES,),
        aggregates=(shared,),
    )
    rig.report_providers(*nodes, pool)
    Aggregates(rig).create("for-project", "host1", filter_tenant_id="project")
    assert hosts_for(rig.scheduler(request_filters=["tenant_aggregate"]), asked()) == {"host1"}


def test_an_isolated_aggregate_serves_only_requests_that_require_its_traits(rig: Rig) -> None:
    rig.add_hosts([1, 2])
    rig.report_providers(provider("host1", None, ["COMPUTE_NODE"], node_uuid(1), VCPU=16, MEMORY_MB=32768, DISK_GB=500))
    Aggregates(rig).create("kept", "host1", **{"trait:COMPUTE_NODE": "required"})
    scheduler = rig.scheduler(request_filters=[*DEFAULT, "isolated_aggregates"])
    assert hosts_for(scheduler, asked()) == {"host2"}
    assert hosts_for(scheduler, asked({"trait:COMPUTE_NODE": "required"})) == {"host1"}


def test_a_request_for_the_zone_of_an_aggregate_gets_only_its_hosts(rig: Rig) -> None:
    rig.add_hosts([1, 2])
    Aggregates(rig).create("rack", "host1", availability_zone="az1")
    scheduler = rig.scheduler(request_filters=["zone_aggregate"])
    assert hosts_for(scheduler, asked(availability_zone="az1")) == {"host1"}


def test_a_host_whose_driver_reports_it_as_disabled_gets_no_servers(rig: Rig) -> None:
    rig.add_hosts([1, 2])
    scheduler = rig.scheduler(request_filters=DEFAULT)
    assert hosts_for(scheduler, asked()) == {"host1", "host2"}
    disabled = provider("host1", None, ["COMPUTE_STATUS_DISABLED"], node_uuid(1), VCPU=16, MEMORY_MB=32768, DISK_GB=500)
    rig.report_providers(disabled)
    assert hosts_for(scheduler, asked()) == {"host2"}


# --- Invalid and repeated requests ------------------------------------------------------------------------------------


INVALID = {
    "$.request_spec.flavor.extra_specs['resources1:VCPU']": asked({"resources1:VCPU": "lots"}),
    "$.request_spec.image.properties['trait:COMPUTE_NODE']": asked({}, {"trait:COMPUTE_NODE": "maybe"}),
    "$.request_spec.group_policy": asked({"resources1:VGPU": "1", "resources2:VGPU": "1"}),
    "$.request_spec.groups['_a'].resources": asked({"trait_a:COMPUTE_NODE": "required"}),
    "$.request_spec.same_subtree[0]": asked({"same_subtree": "_a,_b"}),
}


def test_an_invalid_flavor_or_image_is_refused_with_the_path_of_its_fault(rig: Rig) -> None:
    scheduler = rig.scheduler(request_filters=DEFAULT)
    for path, spec in INVALID.items():
        with pytest.raises(errors.InvalidRequest) as caught:
            scheduler.select(select(fresh(), spec))
        assert caught.value.path == path
    assert not rig.audit().holders


def test_an_unknown_class_or_trait_is_an_error_of_its_own(rig: Rig) -> None:
    rig.add_hosts([1])
    scheduler = rig.scheduler(request_filters=DEFAULT)
    with pytest.raises(errors.ResourceClassNotFound, match="CUSTOM_NOBODYS"):
        scheduler.select(select("r1", asked({"resources:CUSTOM_NOBODYS": "1"})))
    with pytest.raises(errors.TraitNotFound, match="CUSTOM_NOBODYS"):
        scheduler.select(select("r2", asked({"trait:CUSTOM_NOBODYS": "required"})))


def test_a_repeated_request_gets_its_answer_although_it_would_be_refused_now(rig: Rig) -> None:
    rig.add_hosts([1])
    message = select("r1", asked({"resources:VCPU": "2", "trait:COMPUTE_NODE": "maybe"}))
    first = rig.scheduler().select(message)
    assert rig.scheduler(request_filters=DEFAULT).select(message) == first
    required: dict[str, Any] = {"request_filters": ["tenant_aggregate"], "tenant_aggregate_required": True}
    assert rig.scheduler(**required).select(message) == first
