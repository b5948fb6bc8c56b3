"""Test the operator's commands for allocations and candidates, over the bus and directly."""

import pytest
from msgspec import structs
from support.cli.operator import Operator, operator

from moorage import ids
from moorage.config import options
from moorage.messages import DeleteAllocations, GetAllocations, GetResourceProvider, PutAllocations, SetInventories
from moorage.messages.wire import Message, R
from placement_store import in_process
from placement_store.in_process import InProcessPlacement

__all__ = ["operator"]

CONSUMER = ids.derived("commands", "consumer")


@pytest.fixture
def hosts(operator: Operator) -> dict[str, str]:
    """Two hosts with a GPU each; uuids by name."""
    uuids = {}
    for host in ("host1", "host2"):
        uuids[host] = operator.types("resource provider create", host)["uuid"]
        inventories = "--resource VCPU=8 --resource MEMORY_MB=4096"
        operator.types(f"resource provider inventory set {host} {inventories}")
        gpu = operator.types(f"resource provider create {host}_gpu --parent-provider {host}")
        uuids[gpu["name"]] = gpu["uuid"]
        operator.types(f"resource provider inventory set {host}_gpu --resource VGPU=4")
    operator.types("resource provider trait set host2_gpu --trait HW_GPU_API_VULKAN")
    return uuids


def held(rows: list[dict[str, object]]) -> dict[object, object]:
    return {row["resource_provider"]: row["resources"] for row in rows}


def test_allocations_are_set_replaced_unset_in_part_and_deleted(operator: Operator, hosts: dict[str, str]) -> None:
    command = "resource provider allocation"
    rows = operator.types(
        f"{command} set {CONSUMER} --allocation rp=host1,VCPU=2,MEMORY_MB=512"
        f" --allocation rp={hosts['host1_gpu']},VGPU=1"
        " --project-id p --user-id u --consumer-type VOLUME"
    )
    assert held(rows) == {hosts["host1"]: {"VCPU": 2, "MEMORY_MB": 512}, hosts["host1_gpu"]: {"VGPU": 1}}
    assert {(row["project_id"], row["user_id"], row["consumer_type"]) for row in rows} == {("p", "u", "VOLUME")}
    generation = operator.types("resource provider show host1")["generation"]
    assert [row["generation"] for row in rows if row["resource_provider"] == hosts["host1"]] == [generation]

    # For an existing consumer, type, project and user may be omitted.
    rows = operator.types(f"{command} set {CONSUMER} --allocation rp=host2,VCPU=4,MEMORY_MB=64 --generation 1")
    assert held(rows) == {hosts["host2"]: {"VCPU": 4, "MEMORY_MB": 64}}
    assert {(row["project_id"], row["consumer_type"]) for row in rows} == {("p", "VOLUME")}

    operator.types(f"{command} set {CONSUMER} --allocation rp=host1,VCPU=1,MEMORY_MB=1 --allocation rp=host2,VCPU=1")
    left = operator.types(f"{command} unset {CONSUMER} --provider host1 --resource-class VCPU")
    assert held(left) == {hosts["host1"]: {"MEMORY_MB": 1}, hosts["host2"]: {"VCPU": 1}}
    assert held(operator.types(f"{command} unset {CONSUMER} --resource-class MEMORY_MB")) == {
        hosts["host2"]: {"VCPU": 1}
    }
    assert operator.types(f"{command} show {CONSUMER}") == operator.types(f"{command} show {CONSUMER.upper()}")
    operator.does(f"{command} delete {CONSUMER}")
    assert operator.types(f"{command} show {CONSUMER}") == []


def test_foreign_amounts_of_a_deleted_server_can_be_released_but_not_changed(
    operator: Operator, hosts: dict[str, str]
) -> None:
    command = "resource provider allocation"
    operator.types(f"{command} set {CONSUMER} --allocation rp=host1,VCPU=2,MEMORY_MB=1 --project-id p --user-id u")
    conf = options.new(files=[operator.config_file])
    store = InProcessPlacement(conf, operator.words[-1] if operator.words else conf.database.connection)
    store.call(DeleteAllocations(request_id="deleted", consumer_uuid=CONSUMER, for_good=True, keep_extras=True))
    store.close()

    assert held(operator.types(f"{command} show {CONSUMER}")) == {hosts["host1"]: {"VCPU": 2, "MEMORY_MB": 1}}
    assert "deleted for good" in operator.is_refused(f"{command} unset {CONSUMER} --resource-class VCPU")
    operator.does(f"{command} delete {CONSUMER}")
    assert operator.types(f"{command} show {CONSUMER}") == []


def test_a_table_shows_allocations_in_the_syntax_of_the_options(operator: Operator, hosts: dict[str, str]) -> None:
    table = operator.reads(
        f"resource provider allocation set {CONSUMER} --allocation rp=host1,VCPU=2,MEMORY_MB=512"
        " --project-id p --user-id u"
    )
    assert "MEMORY_MB=512, VCPU=2" in table or "VCPU=2, MEMORY_MB=512" in table


def test_an_invalid_allocation_is_refused_in_one_sentence(operator: Operator, hosts: dict[str, str]) -> None:
    refused, nobody = operator.is_refused, ids.fresh()
    command = "resource provider allocation"
    new = f"{command} set {CONSUMER} --project-id p --user-id u --allocation"
    assert "'rp=host1' is not rp=PROVIDER,CLASS=AMOUNT" in refused(f"{new} rp=host1")
    assert refused(f"{new} rp=host3,VCPU=1") == "There is no resource provider host3."
    assert refused(f"{new} rp={nobody},VCPU=1") == f"There is no resource provider {nobody}."
    assert refused(f"{new} rp=host1,CUSTOM_X=1") == "There is no resource class CUSTOM_X."
    assert refused(f"{new} rp=host1,VCPU=9") == (
        f"There is not enough room on 1 inventories, the first of them VCPU of provider {hosts['host1']}."
    )
    assert "it says twice how much VCPU of host1" in refused(f"{new} rp=host1,VCPU=1 --allocation rp=host1,VCPU=2")
    assert "--project-id: required" in refused(f"{command} set {CONSUMER} --allocation rp=host1,VCPU=1")
    assert refused(f"{new} rp=host1,VCPU=1 --generation 3") == (
        f"The consumer {CONSUMER} does not exist, and so it is not at generation 3."
    )
    assert refused(f"{command} unset {CONSUMER}") == f"There is no consumer {CONSUMER}."
    assert refused(f"{command} delete {CONSUMER}") == f"There is no consumer {CONSUMER}."
    assert "'somebody' is not a uuid" in refused(f"{command} show somebody")
    assert operator.types(f"{command} show {CONSUMER}") == []

    operator.types(f"{new} rp=host1,VCPU=1")
    assert "holds nothing of what is to be taken away" in refused(f"{command} unset {CONSUMER} --provider host2")
    for part in ("project_id", "user_id", "consumer_type"):
        said = refused(f"{command} set {CONSUMER} --allocation rp=host1,VCPU=2", f"--{part.replace('_', '-')}", "")
        assert f"The request is invalid at $.wanted.{part}:" in said


# --- Concurrent changes -----------------------------------------------------------------------------------------------


#: The concurrent writer runs in the process of the command itself.
directly = pytest.mark.parametrize("operator", ["directly"], indirect=True)


class Racing(InProcessPlacement):
    """A store with a faster writer: just before the first writes, it changes the generations that they rely on."""

    races = 0

    def call(self, message: Message[R]) -> R:
        if isinstance(message, SetInventories | PutAllocations) and self.races:
            type(self).races -= 1
            self._write_first(message)
        return super().call(message)

    def _write_first(self, message: SetInventories | PutAllocations) -> None:
        if isinstance(message, SetInventories):
            provider = super().call(GetResourceProvider(uuid=message.uuid))
            inventories = {**provider.inventories, "DISK_GB": provider.inventories["VCPU"]}
            super().call(
                structs.replace(
                    message, request_id=ids.fresh(), generation=provider.generation, inventories=inventories
                )
            )
        else:
            consumer = super().call(GetAllocations(consumer_uuid=message.consumer_uuid))
            wanted = structs.replace(message.wanted, allocations=consumer.allocations)
            super().call(structs.replace(message, request_id=ids.fresh(), wanted=wanted))


@pytest.fixture
def racing(monkeypatch: pytest.MonkeyPatch, operator: Operator, hosts: dict[str, str]) -> type[Racing]:
    monkeypatch.setattr(in_process, "InProcessPlacement", Racing)
    return Racing


@directly
def test_an_amend_is_repeated_if_the_inventory_changes_meanwhile(operator: Operator, racing: type[Racing]) -> None:
    racing.races = 2
    amended = operator.types("resource provider inventory set host1 --amend --resource VCPU=16")
    totals = {row["resource_class"]: row["total"] for row in amended}
    assert totals == {"VCPU": 16, "MEMORY_MB": 4096, "DISK_GB": 8}


@directly
def test_an_amend_that_loses_every_race_is_refused(operator: Operator, racing: type[Racing]) -> None:
    racing.races = 3
    assert "is at generation" in operator.is_refused("resource provider inventory set host1 --amend --resource VCPU=16")
    assert operator.types("resource provider inventory show host1 VCPU")["total"] == 8


@directly
def test_an_unset_is_repeated_if_the_consumer_changes_meanwhile_but_a_set_is_refused(
    operator: Operator, racing: type[Racing]
) -> None:
    command = "resource provider allocation"
    operator.types(f"{command} set {CONSUMER} --allocation rp=host1,VCPU=1,MEMORY_MB=1 --project-id p --user-id u")
    racing.races = 1
    refusal = operator.is_refused(f"{command} set {CONSUMER} --allocation rp=host2,VCPU=1")
    assert refusal == f"The consumer {CONSUMER} is at generation 2, not at 1."
    racing.races = 0
    operator.types(f"{command} set {CONSUMER} --allocation rp=host1,VCPU=1,MEMORY_MB=1")
    racing.races = 1
    operator.types(f"{command} unset {CONSUMER} --resource-class VCPU")
    [row] = operator.types(f"{command} show {CONSUMER}")
    assert row["resources"] == {"MEMORY_MB": 1}


# --- Candidates -----------------------------------------------------------------------------------------------------


def test_candidates_are_listed_with_the_amounts_of_each_provider(operator: Operator, hosts: dict[str, str]) -> None:
    rows = operator.types("allocation candidate list --resource VCPU=2 --resource MEMORY_MB=64")
    assert {row["#"] for row in rows} == {1, 2}
    assert {row["resource provider"] for row in rows} == {hosts["host1"], hosts["host2"]}
    assert set(rows[0]["allocation"]) == {"VCPU=2", "MEMORY_MB=64"}
    assert set(rows[0]["inventory used/capacity"]) == {"VCPU=0/8", "MEMORY_MB=0/4096"}

    words = "--resource VCPU=2 --group GPU --resource VGPU=1 --required HW_GPU_API_VULKAN"
    rows = operator.types(f"allocation candidate list {words}")
    assert [
        (row["#"], row["resource provider"], row["groups"]) for row in sorted(rows, key=lambda row: row["groups"])
    ] == [(1, hosts["host2"], []), (1, hosts["host2_gpu"], ["GPU"])]
    assert len(operator.types("allocation candidate list --resource VGPU=1 --limit 1")) == 1
    assert operator.types("allocation candidate list --resource VGPU=5") == []


def test_an_invalid_request_for_candidates_is_refused_in_one_sentence(
    operator: Operator, hosts: dict[str, str]
) -> None:
    refused = operator.is_refused
    command = "allocation candidate list"
    assert refused(f"{command} --resource CUSTOM_X=1") == "There is no resource class CUSTOM_X."
    assert refused(f"{command} --resource VCPU=1 --required CUSTOM_X") == "There is no trait CUSTOM_X."
    assert "'VCPU=' is not CLASS=AMOUNT" in refused(f"{command} --resource VCPU=")
    assert "group_policy" in refused(f"{command} --group A --resource VGPU=1 --group B --resource VGPU=1")
    assert "$.limit" in refused(f"{command} --resource VCPU=1 --limit 0")
    assert refused(command) != ""
