"""Test select_destinations on hosts that are trees of providers, on SQLite and on MariaDB."""

from collections.abc import Mapping, Sequence
from functools import partialmethod
from typing import Any

import pytest
from support.scheduler.builders import select
from support.scheduler.rig import OneScheduler, Rig, node_uuid
from support.scheduler.trees import groups

from moorage import errors
from moorage.ids import derived, fresh
from moorage.messages import (
    ListResourceProviders,
    PutAllocations,
    SwapClaim,
    UpdateResourceProvider,
)
from moorage.model import (
    ConsumerAllocations,
    Explanation,
    Inventory,
    ProviderAmounts,
    ProviderReport,
    ResourceGroup,
    Selection,
)
from placement_store.db.names import sync
from scheduler.decide.host_candidates import HostCandidates

AGGREGATE = derived("tests", "aggregate")
TWO_GPUS = groups(a={"VGPU": 1}, b={"VGPU": 1})


@pytest.fixture
def rig(rig: Rig) -> Rig:
    sync(rig.database)
    return rig


def uuid_of(name: str) -> str:
    return derived("rig", "provider", name)


def provider(name: str, parent: str | None = None, **described: Any) -> ProviderReport:
    """Return the report of a provider, with an inventory or a total for each class."""
    more: dict[str, Any] = {key: tuple(described.pop(key)) for key in ("traits", "aggregates") if key in described}
    inventories = {c: one if isinstance(one, Inventory) else Inventory(total=one) for c, one in described.items()}
    return ProviderReport(uuid=uuid_of(name), name=name, parent_provider_uuid=parent, inventories=inventories, **more)


def add_gpu_hosts(rig: Rig, numbers: Sequence[int], gpus: int = 2, each: int = 1) -> None:
    rig.add_hosts(numbers)
    for number in numbers:
        rig.report_providers(*(provider(f"gpu{n} of {number}", node_uuid(number), VGPU=each) for n in range(gpus)))


def hold(rig: Rig, amounts: Mapping[str, Mapping[str, int]]) -> str:
    """Write allocations of another consumer."""
    consumer = fresh()
    wanted = ConsumerAllocations(
        allocations={uuid: ProviderAmounts(resources=dict(each)) for uuid, each in amounts.items()},
        project_id="other",
        user_id="other",
        consumer_generation=None,
    )
    rig.placement.call(PutAllocations(request_id=rig.fresh(), consumer_uuid=consumer, wanted=wanted))
    return consumer


def used(rig: Rig, name: str) -> dict[str, int]:
    [found] = rig.placement.call(ListResourceProviders(name=name))
    return dict(found.used)


def refusal(scheduler: OneScheduler, **asked: Any) -> Explanation:
    return scheduler.refusal(select(fresh(), **asked))


def amounts(selection: Selection) -> dict[str, dict[str, int]]:
    return {uuid: dict(part.resources) for uuid, part in selection.allocation_request.allocations.items()}


# --- Groups and the providers that serve them -----------------------------------------------------------------------


def test_groups_that_must_be_apart_get_a_gpu_each(rig: Rig) -> None:
    add_gpu_hosts(rig, [1], gpus=2, each=4)
    [[claimed]] = rig.scheduler().select(select("r1", groups=TWO_GPUS, group_policy="isolate"))
    gpus = [uuid_of("gpu0 of 1"), uuid_of("gpu1 of 1")]
    assert amounts(claimed) == {
        node_uuid(1): {"VCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 20},
        gpus[0]: {"VGPU": 1},
        gpus[1]: {"VGPU": 1},
    }
    mappings = claimed.allocation_request.mappings
    assert mappings[""] == (node_uuid(1),)
    assert sorted([mappings["a"], mappings["b"]]) == sorted((gpu,) for gpu in gpus)
    assert claimed.resources == {"VCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 20, "VGPU": 2}
    assert claimed.limits == {"VCPU": 16.0, "MEMORY_MB": 32768.0, "DISK_GB": 500.0, "VGPU": 8.0}
    [holder] = rig.audit().holders
    assert holder.claim_id == claimed.claim_id
    assert used(rig, "gpu0 of 1") == used(rig, "gpu1 of 1") == {"VGPU": 1}


def test_a_function_and_its_bandwidth_come_from_one_card(rig: Rig) -> None:
    rig.add_hosts([1])
    for card, kilobits in (("left", 500), ("right", 2000)):
        rig.report_providers(
            provider(card, node_uuid(1), traits=["CUSTOM_CARD"]),
            provider(f"{card} functions", uuid_of(card), SRIOV_NET_VF=8),
            provider(f"{card} bandwidth", uuid_of(card), NET_BW_EGR_KILOBIT_PER_SEC=kilobits),
        )
    asked = groups(
        card=ResourceGroup(required=("CUSTOM_CARD",)), vf={"SRIOV_NET_VF": 1}, bw={"NET_BW_EGR_KILOBIT_PER_SEC": 1000}
    )
    scheduler = rig.scheduler()
    request: dict[str, Any] = {"groups": asked, "group_policy": "none", "same_subtree": (("card", "vf", "bw"),)}
    [[claimed]] = scheduler.select(select("r1", **request))
    assert claimed.allocation_request.mappings["vf"] == (uuid_of("right functions"),)
    assert claimed.allocation_request.mappings["bw"] == (uuid_of("right bandwidth"),)
    [[claimed]] = scheduler.select(select("r2", **request))
    assert claimed.allocation_request.mappings["vf"] == (uuid_of("right functions"),)
    # The left card has functions and too little bandwidth; the bandwidth of the right one is used up.
    told = refusal(scheduler, **request)
    assert [(stage.name, stage.removed) for stage in told.filters if stage.removed] == [("resources", 1)]


def test_hosts_are_chosen_by_the_traits_of_their_providers(rig: Rig) -> None:
    rig.add_hosts(range(4))
    for number, trait in enumerate(["CUSTOM_FAST", "CUSTOM_SLOW", "CUSTOM_FAST"]):
        rig.report_providers(provider(f"gpu of {number}", node_uuid(number), VGPU=4, traits=[trait]))
    rig.report_providers(provider("second gpu of 1", node_uuid(1), VGPU=4, traits=["CUSTOM_FAST", "CUSTOM_LOUD"]))
    scheduler = rig.scheduler()

    def found(**asked: Any) -> set[str]:
        selections = scheduler.select(select(fresh(), num_alternates=9, **asked))[0]
        return {selection.service_host for selection in selections}

    fast = ResourceGroup(resources={"VGPU": 1}, required=("CUSTOM_FAST",))
    assert found(groups={"g": fast}) == {"host0", "host1", "host2"}
    quiet = ResourceGroup(resources={"VGPU": 1}, required=("CUSTOM_FAST",), forbidden=("CUSTOM_LOUD",))
    assert found(groups={"g": quiet}) == {"host0", "host2"}
    either = ResourceGroup(resources={"VGPU": 1}, any_of=(("CUSTOM_SLOW", "CUSTOM_LOUD"),))
    assert found(groups={"g": either}) == {"host1"}
    assert found() == {"host0", "host1", "host2", "host3"}
    assert refusal(scheduler, root_required=("CUSTOM_FAST",)).filters[-1].name == "traits"


def test_a_pool_serves_each_host_of_its_aggregate_and_is_named_as_shared(rig: Rig) -> None:
    rig.add_hosts([1, 2])
    for number in (1, 2):
        uuid, held = node_uuid(number), {"VCPU": Inventory(total=16), "MEMORY_MB": Inventory(total=32768)}
        rig.report_providers(ProviderReport(uuid=uuid, name=f"host{number}", inventories=held, aggregates=(AGGREGATE,)))
    rig.report_providers(provider("pool", DISK_GB=50, traits=["MISC_SHARES_VIA_AGGREGATE"], aggregates=[AGGREGATE]))
    scheduler = rig.scheduler()
    answer = scheduler.select(select("r1", count=2, num_alternates=1))
    for [claimed, *alternates] in answer:
        assert amounts(claimed)[uuid_of("pool")] == {"DISK_GB": 20}
        assert claimed.shared_providers == (uuid_of("pool"),)
        assert claimed.resources == {"VCPU": 2, "MEMORY_MB": 2048}
        # With both claims on it, the pool has no room for a third.
        assert not alternates
    assert used(rig, "pool") == {"DISK_GB": 40}
    told = refusal(scheduler)
    assert {(miss.host, miss.resource_class, miss.free) for miss in told.nearest_misses} == {
        ("host1", "DISK_GB", 10.0),
        ("host2", "DISK_GB", 10.0),
    }


def test_each_alternate_has_its_own_mappings_and_can_be_claimed_with_them(rig: Rig) -> None:
    add_gpu_hosts(rig, [1, 2, 3])
    hold(rig, {uuid_of("gpu0 of 2"): {"VGPU": 1}})
    asked = groups(a={"VGPU": 1})
    message = select("r1", num_alternates=2, groups=asked)
    [[claimed, *alternates]] = rig.scheduler().select(message)
    assert len(alternates) == 2
    for selection in (claimed, *alternates):
        number = selection.service_host.removeprefix("host")
        [gpu] = selection.allocation_request.mappings["a"]
        assert gpu in {uuid_of(f"gpu{n} of {number}") for n in range(2)} - {uuid_of("gpu0 of 2")}
        assert selection.allocation_request.allocations.keys() == {selection.compute_node_uuid, gpu}
    standing = claimed
    claim_id = str(claimed.claim_id)
    for alternate in alternates:
        swap = SwapClaim(
            request_id=rig.fresh(),
            consumer_uuid=message.instance_uuids[0],
            claim_id=claim_id,
            released=standing.allocation_request,
            claimed=alternate.allocation_request,
            root_provider_uuid=alternate.compute_node_uuid,
        )
        claim_id, standing = rig.placement.call(swap).claim_id, alternate
    [held] = [holder for holder in rig.audit().holders if holder.uuid == message.instance_uuids[0]]
    assert held.claim_id == claim_id


# --- Several instances ----------------------------------------------------------------------------------------------


def test_instances_of_one_request_see_each_others_gpus(rig: Rig) -> None:
    add_gpu_hosts(rig, [1], gpus=3)
    asked = groups(a={"VGPU": 1})
    answer = rig.scheduler().select(select("r1", count=3, groups=asked))
    assert len({claimed.allocation_request.mappings["a"] for [claimed] in answer}) == 3
    add_gpu_hosts(rig, [2], gpus=1)
    with pytest.raises(errors.NoValidHost, match="1 of 2 would fit"):
        rig.scheduler().select(select("r2", count=2, groups=asked))


def test_all_groups_and_instances_of_a_request_share_the_inventory_of_a_gpu(rig: Rig) -> None:
    add_gpu_hosts(rig, [1], gpus=2, each=3)
    scheduler = rig.scheduler()
    answer = scheduler.select(select("r1", count=3, groups=TWO_GPUS, group_policy="none"))
    assert len(answer) == 3
    assert used(rig, "gpu0 of 1") == used(rig, "gpu1 of 1") == {"VGPU": 3}


# --- Refused claims -------------------------------------------------------------------------------------------------


def test_after_a_refused_claim_another_candidate_of_the_same_host_is_claimed(rig: Rig) -> None:
    add_gpu_hosts(rig, [1], gpus=3)
    scheduler = rig.scheduler(max_age=3600.0)
    asked = groups(a={"VGPU": 1})
    [[probe]] = rig.scheduler().select(select("probe", groups=asked))
    [first] = probe.allocation_request.mappings["a"]
    # This GPU is used in the store, and free in the view of the first scheduler.
    [[claimed]] = scheduler.select(select("r1", groups=asked))
    assert claimed.service_host == "host1"
    assert claimed.allocation_request.mappings["a"] != (first,)


def test_if_a_pool_is_full_only_in_the_store_a_host_with_its_own_disk_is_claimed(rig: Rig) -> None:
    rig.add_hosts([1, 2])
    held = {"VCPU": Inventory(total=64), "MEMORY_MB": Inventory(total=65536)}
    rig.report_providers(ProviderReport(uuid=node_uuid(1), name="host1", inventories=held, aggregates=(AGGREGATE,)))
    rig.report_providers(provider("pool", DISK_GB=900, traits=["MISC_SHARES_VIA_AGGREGATE"], aggregates=[AGGREGATE]))
    scheduler = rig.scheduler(max_age=3600.0)
    hold(rig, {uuid_of("pool"): {"DISK_GB": 890}})
    [selections] = scheduler.select(select("r1", num_alternates=1))
    assert [selection.service_host for selection in selections] == ["host2"]


def test_inventory_that_has_moved_to_a_child_since_the_view_was_read_is_claimed_there(rig: Rig) -> None:
    rig.add_hosts([1])
    flat = {"VCPU": Inventory(total=16), "MEMORY_MB": Inventory(total=32768), "DISK_GB": Inventory(total=500)}
    with_gpu = {**flat, "VGPU": Inventory(total=2)}
    rig.report_providers(ProviderReport(uuid=node_uuid(1), name="host1", inventories=with_gpu))
    # Another host can serve the request, and has a lower weight.
    add_gpu_hosts(rig, [2])
    hold(rig, {node_uuid(2): {"VCPU": 8}})
    scheduler = rig.scheduler(max_age=3600.0)
    rig.report_providers(
        ProviderReport(uuid=node_uuid(1), name="host1", inventories=flat),
        provider("gpu", node_uuid(1), VGPU=2),
    )
    [[claimed]] = scheduler.select(select("r1", groups=groups(a={"VGPU": 1})))
    assert claimed.service_host == "host1"
    assert claimed.allocation_request.mappings["a"] == (uuid_of("gpu"),)


def test_a_host_whose_child_provider_was_deleted_is_claimed_with_another_child(rig: Rig) -> None:
    add_gpu_hosts(rig, [1])
    scheduler = rig.scheduler(max_age=3600.0)
    [[probe]] = rig.scheduler().select(select("probe", groups=groups(a={"VGPU": 1})))
    rig.release(select("probe").instance_uuids[0])
    [gone] = probe.allocation_request.mappings["a"]
    rig.report_providers(gone=(gone,))
    [[claimed]] = scheduler.select(select("r1", groups=groups(a={"VGPU": 1})))
    assert claimed.allocation_request.mappings["a"] != (gone,)


# --- The view -------------------------------------------------------------------------------------------------------


def test_the_view_follows_each_change_of_a_tree(rig: Rig) -> None:
    rig.add_hosts([1])
    scheduler = rig.scheduler()

    def shown(trait: str = "CUSTOM_FAST") -> tuple[float, bool, bool]:
        scheduler.follow()
        view = scheduler.host_cache.snapshot()
        return float(view.capacity("VGPU")[0]), bool(view.has_trait(trait)[0]), bool(view.flat[0])

    assert shown() == (0.0, False, True)
    rig.report_providers(provider("card", node_uuid(1)), provider("gpu", uuid_of("card"), VGPU=4))
    assert shown() == (4.0, False, False)
    rig.report_providers(provider("gpu", uuid_of("card"), VGPU=4, traits=["CUSTOM_FAST"]))
    assert shown() == (4.0, True, False)
    moved = UpdateResourceProvider(request_id=rig.fresh(), uuid=uuid_of("gpu"), parent_provider_uuid=node_uuid(1))
    rig.placement.call(moved)
    assert shown() == (4.0, True, False)
    freed = UpdateResourceProvider(request_id=rig.fresh(), uuid=uuid_of("gpu"), parent_provider_uuid=None)
    rig.placement.call(freed)
    assert shown() == (0.0, False, False)
    gone = (uuid_of("card"),)
    rig.report_providers(gone=gone)
    assert shown() == (0.0, False, True)


# --- Refused requests -----------------------------------------------------------------------------------------------


def test_a_host_with_room_for_each_group_but_not_for_all_is_explained(rig: Rig) -> None:
    add_gpu_hosts(rig, [1], gpus=1, each=8)
    rig.report_providers(provider("small", node_uuid(1), VGPU=Inventory(total=8, max_unit=2)))
    asked = groups(a={"VGPU": 4}, b={"VGPU": 3})
    told = refusal(rig.scheduler(), groups=asked, group_policy="isolate")
    last = told.filters[-1]
    assert (last.name, last.hosts, last.removed) == ("candidates", 1, 1)
    assert {(miss.host, miss.resource_class) for miss in told.nearest_misses} >= {("host1", "VGPU")}
    assert all("cannot serve" in miss.reason for miss in told.nearest_misses)
    told = refusal(rig.scheduler(), groups=asked, group_policy="isolate", force_hosts=("host1",))
    assert told.named_hosts == {"host1": "has no providers that can serve all groups of the request together"}


def test_a_group_that_no_provider_serves_alone_is_named(rig: Rig) -> None:
    rig.add_hosts([1])
    rig.report_providers(
        provider("gpu", node_uuid(1), VGPU=1, traits=["CUSTOM_SLOW"]),
        provider("other", node_uuid(1), traits=["CUSTOM_FAST"]),
    )
    fast = ResourceGroup(resources={"VGPU": 1}, required=("CUSTOM_FAST",))
    [miss] = refusal(rig.scheduler(), groups={"gpu": fast}).nearest_misses
    assert (miss.resource_class, miss.asked, miss.free, miss.reason) == ("VGPU", 1, 1.0, "no provider serves group gpu")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"groups": TWO_GPUS}, "$.request_spec.group_policy"),
        ({"groups": groups(a=ResourceGroup(required=("CUSTOM_X",)))}, "$.request_spec.groups['a'].resources"),
        (
            {"groups": groups(a=ResourceGroup(resources={"VGPU": 1}, required=("CUSTOM_X",), forbidden=("CUSTOM_X",)))},
            "$.request_spec.groups['a'].forbidden",
        ),
        ({"groups": groups(a={"VGPU": 1}), "same_subtree": (("a", "b"),)}, "$.request_spec.same_subtree[0]"),
        ({"root_required": ("CUSTOM_X",), "root_forbidden": ("CUSTOM_X",)}, "$.request_spec.root_forbidden"),
    ],
)
def test_a_request_that_contradicts_itself_is_invalid(rig: Rig, changes: dict[str, Any], path: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        rig.scheduler().select(select("r1", **changes))
    assert caught.value.path == path


def test_a_request_with_an_unknown_trait_or_class_is_an_error_that_names_it(rig: Rig) -> None:
    scheduler = rig.scheduler()
    with pytest.raises(errors.TraitNotFound) as caught:
        scheduler.select(select("r1", root_required=("CUSTOM_NOBODYS",)))
    assert caught.value.name == "CUSTOM_NOBODYS"
    with pytest.raises(errors.ResourceClassNotFound):
        scheduler.select(select("r1", groups=groups(a={"CUSTOM_NOTHING": 1})))


def test_a_request_is_not_refused_as_without_a_host_if_the_search_on_a_host_was_not_finished(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostCandidates, "__init__", partialmethod(HostCandidates.__init__, steps=1))
    add_gpu_hosts(rig, [0], gpus=5)
    gpus = groups(**{name: {"VGPU": 1} for name in "abcd"})

    with pytest.raises(errors.SearchBoundReached):
        rig.scheduler().select(select("r1", groups=gpus, group_policy="isolate"))
