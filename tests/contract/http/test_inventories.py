"""Test inventories and usages over HTTP."""

from typing import Any

import pytest
from support.http.replies import Http

from moorage import ids

DEFAULTS = {"reserved": 0, "min_unit": 1, "max_unit": 2**31 - 1, "step_size": 1, "allocation_ratio": 1.0}


def at(provider: str, *rest: str) -> str:
    return "/".join(["/resource_providers", provider, "inventories", *rest])


def whole(generation: int, **inventories: Any) -> dict[str, Any]:
    return {"resource_provider_generation": generation, "inventories": inventories}


def test_inventories_are_created_replaced_and_deleted_and_bump_the_generation(http: Http) -> None:
    provider = http.provider()
    assert http.get(at(provider)).body == whole(0)

    created = http.post(at(provider), {"resource_class": "VCPU", "total": 8})
    assert created.status == 201
    assert created.headers["Location"] == http.url + at(provider, "VCPU")
    assert created.body == {"resource_provider_generation": 1, "total": 8, **DEFAULTS}
    assert http.get(at(provider, "VCPU")).body == created.body

    changed = http.put(at(provider, "VCPU"), {**created.body, "reserved": 2, "allocation_ratio": 1.5})
    assert (changed.status, changed.body["resource_provider_generation"]) == (200, 2)
    assert (changed.body["reserved"], changed.body["allocation_ratio"]) == (2, 1.5)

    replaced = http.put(at(provider), whole(2, MEMORY_MB={"total": 512, "step_size": 64}))
    assert replaced.body == whole(3, MEMORY_MB={"total": 512, **DEFAULTS, "step_size": 64})
    # Writing the same inventories bumps the generation as well.
    assert http.put(at(provider), replaced.body).body == {**replaced.body, "resource_provider_generation": 4}
    assert http.delete(at(provider, "MEMORY_MB")).status == 204
    assert http.get(at(provider)).body == whole(5)
    assert http.delete(at(provider)).status == 204
    assert http.generation(provider) == 6


def test_only_a_missing_inventory_is_created_and_only_an_existing_one_is_changed(http: Http) -> None:
    provider = http.provider(VCPU=1)

    again = http.post(at(provider), {"resource_class": "VCPU", "total": 8})
    assert (again.status, again.code) == (409, "placement.concurrent_update")
    assert http.put(at(provider, "DISK_GB"), {"resource_provider_generation": 1, "total": 8}).status == 400
    for path in (at(provider, "DISK_GB"), at(provider, "CUSTOM_NOBODY_HAS")):
        assert http.get(path).status == 404
        assert http.delete(path).status == 404


def test_a_stale_generation_changes_nothing(http: Http) -> None:
    provider = http.provider(VCPU=1)

    for reply in (
        http.put(at(provider), whole(0, VCPU={"total": 2})),
        http.put(at(provider, "VCPU"), {"resource_provider_generation": 0, "total": 2}),
    ):
        assert (reply.status, reply.code) == (409, "placement.concurrent_update")
    # In a new inventory, the generation is ignored.
    created = http.post(at(provider), {"resource_class": "DISK_GB", "total": 1, "resource_provider_generation": 77})
    assert created.status == 201
    assert http.get(at(provider, "VCPU")).body["total"] == 1


def test_an_inventory_in_use_cannot_be_deleted(http: Http) -> None:
    provider, consumer = http.provider(VCPU=4), ids.fresh()
    http.done(http.allocate(consumer, provider, VCPU=3))
    generation = http.generation(provider)

    for reply in (http.put(at(provider), whole(generation)), http.delete(at(provider))):
        assert (reply.status, reply.code) == (409, "placement.inventory.inuse")
    # The delete of a single inventory has another error code.
    refused = http.delete(at(provider, "VCPU"))
    assert (refused.status, refused.code) == (409, "placement.concurrent_update")
    # The total may be less than the usage, and more may be reserved.
    shrunk = http.put(at(provider), whole(generation, VCPU={"total": 2, "reserved": 1}))
    assert shrunk.status == 200
    assert http.get(f"/resource_providers/{provider}/usages").body["usages"] == {"VCPU": 3}


def test_the_whole_total_may_be_reserved_from_1_26(http: Http) -> None:
    provider = http.provider(VCPU=1)
    reserved = {"total": 4, "reserved": 4}

    for nothing_left in (reserved, {"total": 1, "allocation_ratio": 0.9}):
        assert http.put(at(provider), whole(1, VCPU=nothing_left), "1.25").status == 400
        assert http.put(at(provider, "VCPU"), {**nothing_left, "resource_provider_generation": 1}, "1.25").status == 400
        assert http.post(at(provider), {**nothing_left, "resource_class": "DISK_GB"}, "1.25").status == 400
    assert http.put(at(provider), whole(1, VCPU=reserved), "1.26").status == 200
    assert http.put(at(provider), whole(2, VCPU={"total": 4, "reserved": 5}), "1.26").status == 400


@pytest.mark.parametrize(
    "inventory",
    [
        {},
        {"total": 0},
        {"total": -1},
        {"total": 2**31},
        {"total": 1.5},
        {"total": True},
        {"total": "1"},
        {"total": 1, "reserved": -1},
        {"total": 1, "min_unit": 0},
        {"total": 1, "max_unit": 0},
        {"total": 1, "step_size": 0},
        {"total": 1, "allocation_ratio": 0},
        {"total": 1, "allocation_ratio": -1.0},
        {"total": 1, "allocation_ratio": 1e39},
        {"total": 1, "colour": "blue"},
    ],
)
def test_an_invalid_inventory_is_400(http: Http, inventory: dict[str, Any]) -> None:
    provider = http.provider(VCPU=1)

    assert http.put(at(provider), whole(1, VCPU=inventory)).status == 400
    assert http.put(at(provider, "VCPU"), {**inventory, "resource_provider_generation": 1}).status == 400
    assert http.post(at(provider), {**inventory, "resource_class": "DISK_GB"}).status == 400
    assert http.generation(provider) == 1


def test_a_whole_number_may_be_written_with_a_point(http: Http) -> None:
    provider = http.provider()

    assert http.put(at(provider), whole(0, VCPU={"total": 4.0})).body["inventories"]["VCPU"]["total"] == 4


@pytest.mark.parametrize("name", ["CUSTOM_NOBODY_HAS", "vcpu", "", "V CPU", "V" * 256])
def test_an_unknown_or_invalid_class_is_400(http: Http, name: str) -> None:
    provider = http.provider()

    assert http.put(at(provider), whole(0, **{name: {"total": 1}})).status == 400
    assert http.post(at(provider), {"resource_class": name, "total": 1}).status == 400


def test_a_missing_provider_is_404_even_with_an_invalid_body(http: Http) -> None:
    nobody = ids.fresh()

    for body in (whole(0), {}):
        assert http.put(at(nobody), body).status == 404
    assert http.get(at(nobody)).status == 404
    assert http.get(at("not a uuid")).status == 404
    assert http.post(at(nobody), {"resource_class": "VCPU", "total": 1}).status == 404
    assert http.delete(at(nobody)).status == 404
    assert http.get(f"/resource_providers/{nobody}/usages").status == 404


def test_usages_name_every_class_that_a_provider_has(http: Http) -> None:
    provider = http.provider(VCPU=4, DISK_GB=10)
    for amount in (1, 2):
        http.done(http.allocate(ids.fresh(), provider, VCPU=amount))

    reply = http.get(f"/resource_providers/{provider}/usages", "1.0")
    assert reply.body == {
        "resource_provider_generation": http.generation(provider),
        "usages": {"DISK_GB": 0, "VCPU": 3},
    }
