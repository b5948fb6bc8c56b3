"""Test resource providers and their trees over HTTP."""

from typing import Any

import os_traits
import pytest
from support.http.api import Api
from support.http.replies import Http

from moorage import ids

AT = "/resource_providers"


def test_a_provider_is_created_shown_renamed_and_deleted(http: Http) -> None:
    uuid, name = ids.fresh(), ids.fresh()
    created = http.post(AT, {"name": name, "uuid": uuid}, "1.0")
    assert (created.status, created.body) == (201, None)
    assert created.headers["Location"] == f"{http.url}{AT}/{uuid}"

    shown = http.get(f"{AT}/{uuid}")
    assert (shown.body["name"], shown.body["generation"]) == (name, 0)
    assert (shown.body["root_provider_uuid"], shown.body["parent_provider_uuid"]) == (uuid, None)
    assert shown.headers["Last-Modified"].endswith("GMT")
    assert shown.headers["Cache-Control"] == "no-cache"

    renamed = http.put(f"{AT}/{uuid}", {"name": f"{name} again"})
    assert (renamed.status, renamed.body["name"], renamed.body["generation"]) == (200, f"{name} again", 0)
    assert http.delete(f"{AT}/{uuid}").status == 204
    assert http.get(f"{AT}/{uuid}").status == 404
    assert http.delete(f"{AT}/{uuid}").status == 404
    assert http.put(f"{AT}/{uuid}", {"name": name}).status == 404


def test_a_created_provider_is_returned_from_1_20(http: Http) -> None:
    assert http.post(AT, {"name": ids.fresh()}, "1.19").status == 201
    created = http.post(AT, {"name": ids.fresh()}, "1.20")

    assert created.status == 200
    assert created.headers["Location"].endswith(created.body["uuid"])
    assert created.body == http.get(f"{AT}/{created.body['uuid']}", "1.20").body


@pytest.mark.parametrize(
    ("version", "rels"),
    [
        ("1.0", ["self", "inventories", "usages"]),
        ("1.1", ["self", "inventories", "usages", "aggregates"]),
        ("1.6", ["self", "inventories", "usages", "aggregates", "traits"]),
        ("1.11", ["self", "inventories", "usages", "aggregates", "traits", "allocations"]),
    ],
)
def test_each_version_links_to_the_resources_that_it_has(http: Http, version: str, rels: list[str]) -> None:
    uuid = http.provider()
    links = http.get(f"{AT}/{uuid}", version).body["links"]

    assert [link["rel"] for link in links] == rels
    for link in links:
        assert link["href"] == f"{AT}/{uuid}" + ("" if link["rel"] == "self" else f"/{link['rel']}")


def test_trees_are_shown_and_created_from_1_14(http: Http) -> None:
    root = http.provider()
    child = {"name": ids.fresh(), "parent_provider_uuid": root}

    assert http.post(AT, child, "1.13").status == 400
    assert "root_provider_uuid" not in http.get(f"{AT}/{root}", "1.13").body
    assert http.post(AT, child, "1.14").status == 201
    [found] = http.get(f"{AT}?name={child['name']}", "1.14").body["resource_providers"]
    assert (found["root_provider_uuid"], found["parent_provider_uuid"]) == (root, root)


def test_all_spellings_of_a_uuid_name_the_same_provider(http: Http) -> None:
    uuid = ids.fresh()
    assert http.post(AT, {"name": ids.fresh(), "uuid": uuid.replace("-", "").upper()}).body["uuid"] == uuid

    again = http.post(AT, {"name": ids.fresh(), "uuid": uuid})
    assert (again.status, again.code) == (409, "placement.duplicate_name")
    assert len(http.get(f"{AT}?uuid={uuid.upper()}").body["resource_providers"]) == 1


def test_an_existing_name_is_409(http: Http) -> None:
    name, other = ids.fresh(), http.provider()
    http.provider(name)

    for reply in (http.post(AT, {"name": name}), http.put(f"{AT}/{other}", {"name": name})):
        assert (reply.status, reply.code) == (409, "placement.duplicate_name")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "a "},
        {"name": "a\n"},
        {"name": "a", "uuid": "0123456789abcdef0123456789abcde\n"},
        {"name": "a", "uuid": "0123456789abcdef_123456789abcdef"},
        {"name": "a" * 201},
        {"name": 5},
        {"name": "a", "uuid": "a"},
        {"name": "a", "uuid": None},
        {"name": "a", "parent_provider_uuid": "a"},
        {"name": "a", "root_provider_uuid": None},
        {"name": "a", "generation": 1},
    ],
)
def test_an_invalid_provider_is_400(http: Http, body: object) -> None:
    assert http.post(AT, body).status == 400


def test_a_parent_must_exist_and_be_another_provider(http: Http) -> None:
    uuid = ids.fresh()

    for parent in (uuid, ids.fresh()):
        assert http.post(AT, {"name": ids.fresh(), "uuid": uuid, "parent_provider_uuid": parent}).status == 400
    there = http.provider()
    for parent in (there, ids.fresh()):
        assert http.put(f"{AT}/{there}", {"name": ids.fresh(), "parent_provider_uuid": parent}).status == 400


def test_a_parent_cannot_be_changed_before_1_37(http: Http) -> None:
    first, second, name = http.provider(), http.provider(), ids.fresh()
    child = http.provider(name)
    grandchild = http.provider(parent=child)

    def move(parent: str | None, version: str) -> int:
        return http.put(f"{AT}/{child}", {"name": name, "parent_provider_uuid": parent}, version).status

    def root() -> str:
        return str(http.get(f"{AT}/{grandchild}").body["root_provider_uuid"])

    assert move(first, "1.13") == 400
    assert move(first, "1.14") == 200
    assert root() == first
    assert [move(first, "1.36"), move(second, "1.36"), move(None, "1.36")] == [200, 400, 400]
    # A parent that is not named stays.
    assert http.put(f"{AT}/{child}", {"name": name}, "1.14").body["parent_provider_uuid"] == first
    assert root() == first
    assert move(second, "1.37") == 200
    assert root() == second
    assert move(grandchild, "1.37") == 400
    assert move(None, "1.37") == 200
    assert root() == child


def test_a_provider_with_children_or_allocations_cannot_be_deleted(http: Http) -> None:
    parent = http.provider(VCPU=4)
    child = http.provider(parent=parent)

    refused = http.delete(f"{AT}/{parent}")
    assert (refused.status, refused.code) == (409, "placement.resource_provider.cannot_delete_parent")
    http.done(http.delete(f"{AT}/{child}"))
    consumer = ids.fresh()
    http.done(http.allocate(consumer, parent, VCPU=1))
    refused = http.delete(f"{AT}/{parent}")
    assert (refused.status, refused.code) == (409, "placement.resource_provider.inuse")
    http.done(http.delete(f"/allocations/{consumer}"))
    assert http.delete(f"{AT}/{parent}").status == 204


def test_the_host_of_a_claim_cannot_be_deleted_even_if_pools_serve_it_alone(api: Api) -> None:
    host, pool = api.provider(ids.fresh()), api.provider(ids.fresh(), DISK_GB=10)
    consumer = ids.fresh()
    api.store.claim(consumer, {pool: {"DISK_GB": 1}}, root=host)

    assert api.refused(409, "DELETE", f"{AT}/{host}") == "resource_provider.inuse"

    api.store.delete(consumer)
    api.does("DELETE", f"{AT}/{host}")


# --- Finding providers ------------------------------------------------------------------------------------------------


def found(http: Http, query: str, version: str = "1.39") -> set[str]:
    reply = http.get(f"{AT}?{query}", version)
    assert reply.status == 200, reply
    return {provider["uuid"] for provider in reply.body["resource_providers"]}


def test_providers_are_found_by_name_and_uuid(http: Http) -> None:
    name = ids.fresh()
    uuid, other = http.provider(name), http.provider()

    assert found(http, "", "1.0") >= {uuid, other}
    assert found(http, f"name={name}", "1.0") == {uuid}
    assert found(http, f"uuid={uuid}", "1.0") == {uuid}
    assert found(http, f"uuid={other}&name={name}", "1.0") == set()
    assert found(http, f"name={ids.fresh()}", "1.0") == set()


def test_providers_are_found_by_room_from_1_4(http: Http) -> None:
    resource_class = http.name()
    http.done(http.put(f"/resource_classes/{resource_class}"))
    stepping = {"total": 16, "min_unit": 4, "max_unit": 8, "step_size": 4}

    def provider(of_class: int | dict[str, Any], **more: Any) -> str:
        return http.provider(**more | {resource_class: of_class})

    small, large = provider(2), provider(16, VCPU=8)
    steps = provider(stepping)
    halved = provider({"total": 16, "reserved": 8, "allocation_ratio": 0.5})

    for amount, expected in [
        (1, {small, large, halved}),
        (2, {small, large, halved}),
        (4, {large, steps, halved}),
        (5, {large}),
        (8, {large, steps}),
        (12, {large}),
        (17, set()),
    ]:
        assert found(http, f"resources={resource_class}:{amount}", "1.4") == expected, amount
    assert found(http, f"resources={resource_class}:1,VCPU:8", "1.4") == {large}
    http.done(http.allocate(ids.fresh(), large, **{resource_class: 15}))
    assert found(http, f"resources={resource_class}:2", "1.4") == {small, halved}
    assert http.get(f"{AT}?resources={resource_class}:1", "1.3").status == 400


def test_providers_are_found_by_aggregate_from_1_3(http: Http) -> None:
    first, second = ids.fresh(), ids.fresh()
    both, one, none = http.provider(), http.provider(), http.provider()
    http.done(http.put(f"{AT}/{both}/aggregates", [first, second], "1.1"))
    http.done(http.put(f"{AT}/{one}/aggregates", [first], "1.1"))

    assert http.get(f"{AT}?member_of={first}", "1.2").status == 400
    assert found(http, f"member_of={first}", "1.3") == {both, one}
    assert found(http, f"member_of=in:{second},{ids.fresh()}", "1.3") == {both}
    assert found(http, f"member_of={ids.fresh()}", "1.3") == set()
    assert http.get(f"{AT}?member_of={first}&member_of={second}", "1.23").status == 400
    assert found(http, f"member_of={first}&member_of={second}", "1.24") == {both}
    assert http.get(f"{AT}?member_of=!{second}", "1.31").status == 400
    assert found(http, f"member_of=!{second}", "1.32") >= {one, none}
    assert both not in found(http, f"member_of=!{second}", "1.32")
    assert found(http, f"member_of={first}&member_of=!in:{second},{ids.fresh()}", "1.32") == {one}


def test_at_most_256_conditions_of_each_kind_are_taken(http: Http) -> None:
    names = sorted(os_traits.get_traits())[:257]
    kinds = {
        "member_of": [f"member_of={ids.fresh()}" for _ in range(257)],
        "in:": [f"required=in:{names[0]}"] * 257,
        "required": [f"required={name}" for name in names],
    }

    assert found(http, "&".join(one for conditions in kinds.values() for one in conditions[:256]), "1.39") == set()
    for conditions in kinds.values():
        refused = http.get(f"{AT}?{'&'.join(conditions)}", "1.39")
        assert (refused.status, "more than 256 conditions" in refused.text) == (400, True)


def test_providers_are_found_by_tree_from_1_14(http: Http) -> None:
    root = http.provider()
    child = http.provider(parent=root)

    assert http.get(f"{AT}?in_tree={root}", "1.13").status == 400
    for member in (root, child):
        assert found(http, f"in_tree={member}", "1.14") == {root, child}
    assert found(http, f"in_tree={ids.fresh()}", "1.14") == set()


def test_providers_are_found_by_traits_from_1_18(http: Http) -> None:
    one, two, uuid = http.name(), http.name(), ids.fresh()
    both, first, second = http.provider(), http.provider(), http.provider()
    for provider, names in ((both, [one, two]), (first, [one]), (second, [two])):
        for name in names:
            http.done(http.put(f"/traits/{name}"))
        http.done(http.put(f"{AT}/{provider}/traits", {"traits": names, "resource_provider_generation": 0}))
        http.done(http.put(f"{AT}/{provider}/aggregates", [uuid], "1.1"))
    here = f"member_of={uuid}"

    assert http.get(f"{AT}?required={one}", "1.17").status == 400
    assert found(http, f"{here}&required={one}", "1.18") == {both, first}
    assert found(http, f"{here}&required={one},{two}", "1.18") == {both}
    assert http.get(f"{AT}?required=!{one}", "1.21").status == 400
    assert found(http, f"{here}&required=!{one}", "1.22") == {second}
    # Before 1.39 only the last of several parameters is used.
    assert found(http, f"{here}&required={one}&required={two}", "1.38") == {both, second}
    assert found(http, f"{here}&required={one}&required={two}", "1.39") == {both}
    assert http.get(f"{AT}?required=in:{one},{two}", "1.38").status == 400
    assert found(http, f"{here}&required=in:{one},{two}", "1.39") == {both, first, second}
    assert found(http, f"{here}&required=in:{one},{two}&required=!{one}", "1.39") == {second}


@pytest.mark.parametrize(
    "query",
    [
        "uuid=a",
        "resources=",
        "resources=VCPU",
        "resources=VCPU:",
        "resources=VCPU:0",
        "resources=VCPU:-1",
        "resources=VCPU:1.5",
        "resources=VCPU:x",
        "resources=VCPU:1,",
        "resources=CUSTOM_NOBODY_HAS:1",
        "resources=vcpu:1",
        "member_of=",
        "member_of=a",
        "member_of=in:",
        "member_of=!in:a",
        "in_tree=a",
        "in_tree=",
        "required=",
        "required=A,,B",
        "required=a",
        "required=!",
        "required=in:",
        "required=in:A,!B",
        "required=CUSTOM_NOBODY_HAS",
    ],
)
def test_an_invalid_query_is_400(http: Http, query: str) -> None:
    assert http.get(f"{AT}?{query}").status == 400


@pytest.mark.parametrize(
    "query", ["required=HW_CPU_X86_AVX2,!HW_CPU_X86_AVX2", "required=in:HW_CPU_X86_AVX2&required=!HW_CPU_X86_AVX2"]
)
def test_a_query_that_requires_and_forbids_a_trait_matches_nothing(http: Http, query: str) -> None:
    http.provider()
    assert http.get(f"{AT}?{query}").body == {"resource_providers": []}
