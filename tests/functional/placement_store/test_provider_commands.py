"""Test the commands for resource providers, over the bus and directly, with the same answers."""

import pytest
from support.cli.operator import Operator, operator

from moorage import errors, ids
from moorage.messages.wire import Message, Mutation, R
from placement_store import in_process
from placement_store.commands.inventories import InventoryClassSet
from placement_store.in_process import InProcessPlacement

__all__ = ["operator"]

POOL, RACK = ids.derived("commands", "pool"), ids.derived("commands", "rack")


def names(rows: list[dict[str, object]]) -> list[object]:
    return [row["name"] for row in rows]


# --- Providers ------------------------------------------------------------------------------------------------------


def test_a_tree_is_created_renamed_moved_and_deleted(operator: Operator) -> None:
    host = operator.types("resource provider create host1")
    assert host["root_provider_uuid"] == host["uuid"]
    assert host["parent_provider_uuid"] is None
    uuid = ids.fresh()
    gpu = operator.types("resource provider create gpu --parent-provider host1 --uuid", uuid)
    assert (gpu["uuid"], gpu["parent_provider_uuid"], gpu["generation"]) == (uuid, host["uuid"], 0)
    assert operator.types("resource provider show gpu") == gpu

    assert operator.types("resource provider set gpu --name gpu0")["name"] == "gpu0"
    assert operator.types("resource provider set gpu0 --no-parent-provider")["root_provider_uuid"] == uuid
    moved = operator.types("resource provider set", uuid, "--parent-provider", host["uuid"].upper())
    assert (moved["root_provider_uuid"], moved["name"]) == (host["uuid"], "gpu0")
    assert names(operator.types("resource provider list")) == ["gpu0", "host1"]
    for tree in (host["uuid"], "host1", "gpu0"):
        assert names(operator.types("resource provider list --in-tree", tree)) == ["gpu0", "host1"]

    assert "has children" in operator.is_refused("resource provider delete host1")
    operator.does("resource provider delete gpu0")
    operator.does("resource provider delete", host["uuid"])
    assert operator.types("resource provider list") == []


def test_a_provider_is_found_by_a_name_that_has_the_form_of_a_uuid(operator: Operator) -> None:
    # The node of a driver that calls its nodes by their uuids, and a machine that is called by its machine-id.
    for name in (ids.fresh(), ids.fresh().replace("-", "")):
        node = operator.types("resource provider create", name)
        assert operator.types("resource provider show", name) == node
        assert operator.types("resource provider show", node["uuid"]) == node
        for tree in (name, node["uuid"]):
            assert names(operator.types("resource provider list --in-tree", tree)) == [name]
        operator.does("resource provider delete", name)
        assert operator.is_refused("resource provider show", name) == f"There is no resource provider {name}."


def test_an_invalid_change_of_a_provider_is_refused_in_one_sentence(operator: Operator) -> None:
    refused = operator.is_refused
    host = operator.types("resource provider create host1")["uuid"]
    operator.types("resource provider create numa --parent-provider host1")
    nobody = ids.fresh()

    assert refused("resource provider create host1") == "The resource provider host1 exists already."
    assert refused("resource provider create a --uuid", host) == f"The resource provider {host} exists already."
    assert refused("resource provider create a --uuid", "x").endswith("argument --uuid: 'x' is not a uuid")
    assert refused("resource provider create a --parent-provider b") == "There is no resource provider b."
    assert refused("resource provider show", nobody) == f"There is no resource provider {nobody}."
    assert refused("resource provider show host2") == "There is no resource provider host2."
    assert refused("resource provider tree", nobody) == f"There is no resource provider {nobody}."
    assert refused("resource provider delete host2") == "There is no resource provider host2."
    assert "give at least one change" in refused("resource provider set host1")
    assert "below" in refused("resource provider set host1 --parent-provider numa")
    assert "not allowed with" in refused("resource provider set numa --no-parent-provider --parent-provider host1")
    assert refused("resource provider set numa --name host1") == "The resource provider host1 exists already."
    assert operator.types("resource provider show host1")["parent_provider_uuid"] is None


def test_providers_are_listed_by_resources_traits_aggregates_and_name(operator: Operator) -> None:
    for name, total in (("small", "4"), ("large", "16")):
        operator.types("resource provider create", name)
        operator.types("resource provider inventory set", name, "--resource", f"VCPU={total}")
    operator.does("trait create CUSTOM_FAST")
    operator.types("resource provider trait set large --trait HW_CPU_X86_AVX2 --trait CUSTOM_FAST")
    operator.types("resource provider aggregate set small", RACK)

    listed = "resource provider list"
    assert names(operator.types(f"{listed} --resource VCPU=5")) == ["large"]
    assert names(operator.types(f"{listed} --resource VCPU=4")) == ["large", "small"]
    assert names(operator.types(f"{listed} --required CUSTOM_FAST --required HW_CPU_X86_AVX2")) == ["large"]
    assert names(operator.types(f"{listed} --required in:CUSTOM_FAST,HW_CPU_X86_AVX")) == ["large"]
    assert names(operator.types(f"{listed} --forbidden CUSTOM_FAST")) == ["small"]
    assert names(operator.types(f"{listed} --member-of {POOL},{RACK}")) == ["small"]
    assert names(operator.types(f"{listed} --member-of {POOL.upper()},{RACK.replace('-', '')}")) == ["small"]
    assert names(operator.types(f"{listed} --not-member-of {RACK}")) == ["large"]
    assert names(operator.types(f"{listed} --name small")) == ["small"]
    assert operator.types(f"{listed} --uuid {ids.fresh()}") == []
    refused = operator.is_refused
    assert refused(f"{listed} --required CUSTOM_NONE") == "There is no trait CUSTOM_NONE."
    assert refused(f"{listed} --resource CUSTOM_NONE=1") == "There is no resource class CUSTOM_NONE."
    assert "'VCPU=' is not CLASS=AMOUNT" in refused(f"{listed} --resource VCPU=")


# --- Inventories ----------------------------------------------------------------------------------------------------


def test_inventories_are_set_amended_and_deleted(operator: Operator) -> None:
    operator.types("resource provider create host1")
    inventory = "resource provider inventory"
    words = "--resource VCPU=16 --resource VCPU:max_unit=4 --resource VCPU:allocation_ratio=2.5 --resource DISK_GB=100"
    [disk, vcpu] = operator.types(f"{inventory} set host1 {words}")
    assert vcpu == {
        "resource_class": "VCPU",
        "allocation_ratio": 2.5,
        "min_unit": 1,
        "max_unit": 4,
        "reserved": 0,
        "step_size": 1,
        "total": 16,
    }
    assert (disk["resource_class"], disk["total"]) == ("DISK_GB", 100)

    amended = operator.types(f"{inventory} set host1 --amend --resource VCPU:reserved=2 --dry-run")
    assert [(row["resource_class"], row["reserved"], row["total"]) for row in amended] == [
        ("DISK_GB", 0, 100),
        ("VCPU", 2, 16),
    ]
    del vcpu["resource_class"]
    assert operator.types(f"{inventory} show host1 VCPU") == {**vcpu, "used": 0}
    operator.types(f"{inventory} set host1 --amend --resource VCPU:reserved=2")
    assert operator.types(f"{inventory} show host1 VCPU")["reserved"] == 2
    assert operator.types(f"{inventory} show host1 VCPU")["max_unit"] == 4

    shown = operator.types(f"{inventory} class set host1 MEMORY_MB --total 1024 --step_size 16 --min-unit 16")
    assert (shown["total"], shown["step_size"], shown["min_unit"], shown["allocation_ratio"]) == (1024, 16, 16, 1.0)
    assert operator.types(f"{inventory} class set host1 VCPU --total 8")["max_unit"] == 2**31 - 1
    listed = operator.types(f"{inventory} list host1")
    assert [(row["resource_class"], row["used"]) for row in listed] == [("DISK_GB", 0), ("MEMORY_MB", 0), ("VCPU", 0)]

    operator.does(f"{inventory} delete host1 --resource-class DISK_GB")
    operator.does(f"{inventory} delete host1 --resource-class VCPU")
    assert [row["resource_class"] for row in operator.types(f"{inventory} list host1")] == ["MEMORY_MB"]
    operator.does(f"{inventory} delete host1")
    assert operator.types(f"{inventory} list host1") == []


def test_a_ratio_that_is_amended_keeps_the_reserved_amount_which_a_replaced_inventory_loses(operator: Operator) -> None:
    operator.types("resource provider create host1")
    inventory = "resource provider inventory"
    operator.types(f"{inventory} set host1 --resource MEMORY_MB=65536 --resource MEMORY_MB:reserved=4096")

    [amended] = operator.types(f"{inventory} set host1 --amend --resource MEMORY_MB:allocation_ratio=1.5")
    assert (amended["total"], amended["reserved"], amended["allocation_ratio"]) == (65536, 4096, 1.5)
    replaced = operator.types(f"{inventory} class set host1 MEMORY_MB --total 65536 --allocation-ratio 1.5")
    assert replaced["reserved"] == 0
    assert "this also resets `reserved`" in (InventoryClassSet.__doc__ or "")


def test_the_inventories_of_all_providers_of_an_aggregate_are_set_at_once(operator: Operator) -> None:
    for name in ("host1", "host2", "host3"):
        operator.types("resource provider create", name)
        operator.types("resource provider inventory set", name, "--resource", "VCPU=4")
    for name in ("host1", "host2"):
        operator.types("resource provider aggregate set", name, RACK)
    rows = operator.types(f"resource provider inventory set {RACK} --aggregate --amend --resource VCPU:reserved=1")
    assert len({row["resource_provider"] for row in rows}) == 2
    reserved = {
        name: operator.types(f"resource provider inventory show {name} VCPU")["reserved"]
        for name in ("host1", "host2", "host3")
    }
    assert reserved == {"host1": 1, "host2": 1, "host3": 0}
    assert "There is no aggregate" in operator.is_refused(f"resource provider inventory set {POOL} --aggregate")
    assert "not the uuid of an aggregate" in operator.is_refused("resource provider inventory set rack --aggregate")


def test_an_invalid_inventory_is_refused_in_one_sentence(operator: Operator) -> None:
    refused = operator.is_refused
    uuid = operator.types("resource provider create host1")["uuid"]
    inventory = "resource provider inventory"
    assert "'VCPU=' is not CLASS=TOTAL or CLASS:FIELD=VALUE" in refused(f"{inventory} set host1 --resource VCPU=")
    for twice, named in (("VCPU=1", "VCPU:total"), ("VCPU:max_unit=1", "VCPU:max_unit")):
        assert f"{named} is given twice" in refused(f"{inventory} set host1 --resource {twice} --resource {twice}")
    assert "the total of VCPU is missing" in refused(f"{inventory} set host1 --resource VCPU:reserved=1")
    assert refused(f"{inventory} set host1 --resource CUSTOMX=1") == "There is no resource class CUSTOMX."
    assert refused(f"{inventory} set host2 --resource VCPU=1") == "There is no resource provider host2."
    for more in ("", "--dry-run"):
        assert refused(f"{inventory} set host1 --generation 7 --resource VCPU=1 {more}") == (
            f"The resource provider {uuid} is at generation 0, not at 7."
        )
    assert "is invalid" in refused(f"{inventory} set host1 --resource VCPU=4 --resource VCPU:reserved=5")
    assert refused(f"{inventory} class set host1 VCPU --max-unit 1").endswith("arguments are required: --total")
    assert "it takes a whole number" in refused(f"{inventory} class set host1 VCPU --total x")
    assert refused(f"{inventory} show host1 VCPU") == f"The resource provider {uuid} has no inventory of VCPU."
    assert refused(f"{inventory} delete host1 --resource-class VCPU") == (
        f"The resource provider {uuid} has no inventory of VCPU."
    )


# --- Traits, aggregates and classes ---------------------------------------------------------------------------------


def test_traits_are_created_set_and_deleted(operator: Operator) -> None:
    operator.types("resource provider create host1")
    operator.does("trait create CUSTOM_A")
    operator.does("trait create CUSTOM_A")
    provider_trait = "resource provider trait"
    given = operator.types(f"{provider_trait} set host1 --trait HW_CPU_X86_AVX2 --trait CUSTOM_A")
    assert names(given) == ["CUSTOM_A", "HW_CPU_X86_AVX2"]
    assert names(operator.types(f"{provider_trait} list host1")) == ["CUSTOM_A", "HW_CPU_X86_AVX2"]
    assert names(operator.types("trait list --associated")) == ["CUSTOM_A", "HW_CPU_X86_AVX2"]
    assert names(operator.types("trait list --name startswith:CUSTOM_")) == ["CUSTOM_A"]
    assert names(operator.types("trait list --name in:CUSTOM_A,HW_CPU_X86_AVX --not-associated")) == ["HW_CPU_X86_AVX"]
    assert len(operator.types("trait list")) > 100
    assert operator.types("trait show CUSTOM_A") == {"name": "CUSTOM_A"}

    refused = operator.is_refused
    assert refused("trait delete CUSTOM_A") == "The trait CUSTOM_A is in use and cannot be deleted."
    assert refused("trait show CUSTOM_B") == "There is no trait CUSTOM_B."
    assert refused(f"{provider_trait} set host1 --trait CUSTOM_B") == "There is no trait CUSTOM_B."
    assert "'custom_b' is no trait" in refused("trait create custom_b")
    assert "CUSTOM_" in refused("trait create HW_MINE")
    assert "not at 99" in refused(f"{provider_trait} set host1 --generation 99")

    operator.does(f"{provider_trait} delete host1")
    assert operator.types(f"{provider_trait} list host1") == []
    operator.does("trait delete CUSTOM_A")
    assert refused("trait delete CUSTOM_A") == "There is no trait CUSTOM_A."


def test_aggregates_of_a_provider_are_set_and_listed(operator: Operator) -> None:
    operator.types("resource provider create host1")
    aggregate = "resource provider aggregate"
    joined = operator.types(f"{aggregate} set host1 {POOL} {RACK}")
    assert sorted(row["uuid"] for row in joined) == sorted([POOL, RACK])
    generation = operator.types("resource provider show host1")["generation"]
    assert operator.types(f"{aggregate} set host1 {POOL} --generation {generation}") == [{"uuid": POOL}]
    assert "not at 0" in operator.is_refused(f"{aggregate} set host1 --generation 0")
    assert operator.types(f"{aggregate} list host1") == [{"uuid": POOL}]
    assert operator.types(f"{aggregate} set host1") == []
    assert "'rack' is not a uuid" in operator.is_refused(f"{aggregate} set host1 rack")


def test_resource_classes_are_created_and_deleted(operator: Operator) -> None:
    operator.does("resource class create CUSTOM_FPGA")
    refused = operator.is_refused
    assert refused("resource class create CUSTOM_FPGA") == "The resource class CUSTOM_FPGA exists already."
    operator.does("resource class set CUSTOM_FPGA")
    assert operator.types("resource class show CUSTOM_FPGA") == {"name": "CUSTOM_FPGA"}
    assert {"CUSTOM_FPGA", "VCPU"} <= set(names(operator.types("resource class list")))
    operator.types("resource provider create host1")
    operator.types("resource provider inventory set host1 --resource CUSTOM_FPGA=2")
    assert refused("resource class delete CUSTOM_FPGA") == (
        "The resource class CUSTOM_FPGA is in use and cannot be deleted."
    )
    operator.does("resource provider inventory delete host1")
    operator.does("resource class delete CUSTOM_FPGA")
    assert refused("resource class show CUSTOM_FPGA") == "There is no resource class CUSTOM_FPGA."
    assert "VCPU" in refused("resource class delete VCPU")
    assert "CUSTOM_" in refused("resource class create MINE")


# --- The tree -------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu_host(operator: Operator) -> str:
    """The uuid of a host with two GPUs."""
    host: str = operator.types("resource provider create host1")["uuid"]
    operator.types(
        "resource provider inventory set host1 --resource VCPU=8 --resource VCPU:allocation_ratio=2 "
        "--resource MEMORY_MB=4096"
    )
    for number in (0, 1):
        operator.types(f"resource provider create host1_gpu{number} --parent-provider host1")
        operator.types(f"resource provider inventory set host1_gpu{number} --resource VGPU=4")
    operator.types("resource provider trait set host1_gpu0 --trait HW_GPU_API_VULKAN")
    return host


def test_a_tree_is_drawn_with_its_inventories_and_usages(operator: Operator, gpu_host: str) -> None:
    consumer = ids.fresh()
    allocations = "--allocation rp=host1,VCPU=2 --allocation rp=host1_gpu0,VGPU=1 --project-id p --user-id u"
    operator.types("resource provider allocation set", consumer, *allocations.split())

    rows = {row["name"]: row for row in operator.types("resource provider tree host1_gpu1")}
    assert list(rows) == ["host1", "host1_gpu0", "host1_gpu1"]
    assert rows["host1"]["inventories"] == {
        "MEMORY_MB": {"used": 0, "capacity": 4096},
        "VCPU": {"used": 2, "capacity": 16},
    }
    assert rows["host1_gpu0"]["parent_provider_uuid"] == gpu_host
    assert rows["host1_gpu0"]["traits"] == ["HW_GPU_API_VULKAN"]

    drawn = operator.reads("resource provider tree host1 -c name -c inventories").splitlines()
    first_cells = [line.split("|")[1].rstrip() for line in drawn[3:-1]]
    assert first_cells == [" host1", " │", " ├─ host1_gpu0", " └─ host1_gpu1"]
    assert "VCPU 2/16" in drawn[4]
    assert "VGPU 1/4" in drawn[5]


def test_a_provider_is_shown_with_its_allocations_and_usages(operator: Operator, gpu_host: str) -> None:
    consumer = ids.fresh()
    words = "--allocation rp=host1_gpu0,VGPU=2 --project-id p --user-id u"
    operator.types("resource provider allocation set", consumer, *words.split())
    shown = operator.types("resource provider show host1_gpu0 --allocations")
    assert shown["allocations"] == {consumer: {"resources": {"VGPU": 2}}}
    assert operator.types("resource provider usage show host1_gpu0") == [{"resource_class": "VGPU", "usage": 2}]
    [usage] = operator.types("resource usage show p")
    assert usage == {"consumer_type": "INSTANCE", "consumer_count": 1, "resource_class": "VGPU", "usage": 2}
    assert operator.types("resource usage show p --user-id somebody") == []
    assert "is in use" in operator.is_refused("resource provider delete host1_gpu0")
    assert "in use" in operator.is_refused("resource provider inventory delete host1_gpu0")


# --- No answer ------------------------------------------------------------------------------------------------------


class Forgetful(InProcessPlacement):
    """Carries out every request, and loses the first answers to those that change something."""

    losses = 0

    def call(self, message: Message[R]) -> R:
        answer = super().call(message)
        if isinstance(message, Mutation) and self.losses:
            type(self).losses -= 1
            raise errors.NoReply(topic="placement", method=message.method, seconds=60.0)
        return answer


@pytest.mark.parametrize("operator", ["directly"], indirect=True)
def test_a_request_without_an_answer_is_sent_once_more_and_carried_out_once(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "InProcessPlacement", Forgetful)
    Forgetful.losses = 1
    host = operator.types("resource provider create host1")
    assert operator.types("resource provider list") == [host]
    Forgetful.losses = 2
    assert "There was no answer to update_resource_provider" in operator.is_refused(
        "resource provider set host1 --name host2"
    )


def test_a_change_whose_output_has_no_column_of_the_given_name_shows_all_columns(operator: Operator) -> None:
    shown = operator.types("resource provider create", "one", "-c", "id")

    assert "There is no column id: all columns are shown" in operator.said.err
    assert shown["uuid"] == operator.types("resource provider show one")["uuid"]
    assert operator.types("resource provider show one", "-c", "id", "-c", "Name") == {"name": "one"}
