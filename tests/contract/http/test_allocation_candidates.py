"""Test allocation candidates over HTTP: the query and the answer in every version."""

from typing import Any

import os_traits
import pytest
from support.http.api import Api
from support.http.replies import NEWEST
from support.placement_store import hard_searches

from moorage import ids

SHARES = "MISC_SHARES_VIA_AGGREGATE"


def asked(api: Api, query: str, version: str = NEWEST) -> Any:
    return api.get(f"/allocation_candidates?{query}", version)


def taken(found: Any) -> list[dict[str, dict[str, int]]]:
    """Return the amounts of each candidate."""
    return [
        {uuid: part["resources"] for uuid, part in one["allocations"].items()} for one in found["allocation_requests"]
    ]


def refused(api: Api, query: str, version: str = NEWEST) -> str:
    return api.refused(400, "GET", f"/allocation_candidates?{query}", version=version)


def asked_in_vain(api: Api, query: str) -> Any:
    """Return the error of a query that is a bad request."""
    reply = api.ask("GET", f"/allocation_candidates?{query}")
    assert reply.status_code == 400, reply.text
    return reply.json()["errors"][0]


def aggregates(api: Api, uuid: str, *members: str) -> None:
    api.does("PUT", f"/resource_providers/{uuid}/aggregates", list(members), "1.18")


def traits(api: Api, uuid: str, *names: str) -> None:
    path = f"/resource_providers/{uuid}/traits"
    for name in names:
        if name.startswith("CUSTOM_"):
            api.does("PUT", f"/traits/{name}")
    api.does("PUT", path, api.get(path) | {"traits": list(names)})


@pytest.fixture
def host(api: Api) -> str:
    return api.provider("host", VCPU={"total": 8, "allocation_ratio": 1.7}, MEMORY_MB=1024)


@pytest.fixture
def cards(api: Api, host: str) -> list[str]:
    """Two devices of the host."""
    return [api.provider(f"card{number}", parent=host, VGPU=1) for number in range(2)]


# --- Format of the answer ---------------------------------------------------------------------------------------------


def test_each_version_adds_fields_to_the_answer(api: Api, host: str) -> None:
    api.does("GET", "/allocation_candidates?resources=VCPU:2", version="1.10")
    vcpu, memory = {"capacity": 13, "used": 0}, {"capacity": 1024, "used": 0}
    listed = [{"allocations": [{"resource_provider": {"uuid": host}, "resources": {"VCPU": 2}}]}]
    by_provider: dict[str, Any] = {"allocations": {host: {"resources": {"VCPU": 2}}}}
    place = {"parent_provider_uuid": None, "root_provider_uuid": host}
    plain = {"resources": {"VCPU": vcpu}}
    full = {"resources": {"VCPU": vcpu, "MEMORY_MB": memory}, "traits": []}

    for version, requests, summary in [
        ("1.10", listed, plain),
        ("1.12", [by_provider], plain),
        ("1.17", [by_provider], plain | {"traits": []}),
        ("1.26", [by_provider], plain | {"traits": []}),
        ("1.27", [by_provider], full),
        ("1.29", [by_provider], full | place),
        ("1.33", [by_provider], full | place),
        ("1.34", [by_provider | {"mappings": {"": [host]}}], full | place),
    ]:
        found = asked(api, "resources=VCPU:2", version)
        assert found == {"allocation_requests": requests, "provider_summaries": {host: summary}}, version


def test_a_candidate_with_an_owner_can_be_put_as_allocations(api: Api, host: str, cards: list[str]) -> None:
    (first, *_) = asked(api, "resources=VCPU:2&resources_CARD=VGPU:1")["allocation_requests"]
    owner = {"project_id": "p", "user_id": "u", "consumer_generation": None, "consumer_type": "INSTANCE"}
    uuid = ids.fresh()
    api.does("PUT", f"/allocations/{uuid}", first | owner)
    assert api.store.held(uuid) == {u: part["resources"] for u, part in first["allocations"].items()}
    assert len(asked(api, "resources=VCPU:2&resources_CARD=VGPU:1")["allocation_requests"]) == 1


def test_a_request_without_candidates_gets_an_empty_answer(api: Api, host: str) -> None:
    empty: dict[str, Any] = {"allocation_requests": [], "provider_summaries": {}}
    for query in (
        "resources=VCPU:14",
        "resources=VGPU:1",
        f"resources=VCPU:1&in_tree={ids.fresh()}",
        f"resources=VCPU:1&member_of={ids.fresh()}",
        "resources=VCPU:1&required=HW_CPU_X86_AVX2",
    ):
        assert asked(api, query) == empty, query


# --- Trees, before and after 1.29 -------------------------------------------------------------------------------------


def test_before_1_29_a_candidate_uses_one_provider_of_a_tree(api: Api, host: str, cards: list[str]) -> None:
    assert taken(asked(api, "resources=VCPU:1,VGPU:1", "1.28")) == []
    by_card = [{host: {"VCPU": 1}, card: {"VGPU": 1}} for card in cards]
    assert taken(asked(api, "resources=VCPU:1,VGPU:1", "1.29")) == by_card
    found = asked(api, "resources=VGPU:1", "1.28")
    assert taken(found) == [{card: {"VGPU": 1}} for card in cards]
    assert found["provider_summaries"].keys() == set(cards)
    assert asked(api, "resources=VGPU:1", "1.29")["provider_summaries"].keys() == {host, *cards}


def test_pools_are_shared_before_1_29_too(api: Api, host: str, cards: list[str]) -> None:
    pool, aggregate = api.provider("pool", DISK_GB=100), ids.fresh()
    traits(api, pool, SHARES)
    aggregates(api, pool, aggregate)
    aggregates(api, host, aggregate)
    for version in ("1.28", NEWEST):
        found = asked(api, "resources=VCPU:1,DISK_GB:5", version)
        assert taken(found) == [{host: {"VCPU": 1}, pool: {"DISK_GB": 5}}], version
    assert taken(asked(api, "resources=DISK_GB:5", "1.28")) == [{pool: {"DISK_GB": 5}}]


def test_a_wide_tree_does_not_slow_down_old_versions(api: Api) -> None:
    # 64 cards of each of three kinds: a quarter of a million candidates, none of which uses only one provider.
    root = api.provider("wide", MEMORY_MB=1)
    for number in range(64):
        for name in ("VGPU", "FPGA", "PCI_DEVICE"):
            uuid = ids.fresh()
            api.store.provider(f"{name}{number}", uuid, parent=root, **{name: 1})
    assert taken(asked(api, "resources=VGPU:1,FPGA:1,PCI_DEVICE:1", "1.28")) == []
    assert len(taken(asked(api, "resources=VGPU:1,FPGA:1,PCI_DEVICE:1&limit=3"))) == 3


# --- Groups -----------------------------------------------------------------------------------------------------------


def test_groups_may_be_numbered_from_1_25_and_named_from_1_33(api: Api, host: str, cards: list[str]) -> None:
    numbered = "resources=VCPU:1&resources1=VGPU:1&resources2=VGPU:1&group_policy=isolate"
    both = {host: {"VCPU": 1}, cards[0]: {"VGPU": 1}, cards[1]: {"VGPU": 1}}
    refused(api, numbered, "1.24")
    assert taken(asked(api, numbered, "1.29")) == [both, both]
    named = numbered.replace("resources1", "resources_A").replace("resources2", "resources_B")
    refused(api, named, "1.32")
    one, other = (found["mappings"] for found in asked(api, named, "1.34")["allocation_requests"])
    assert one.keys() == other.keys() == {"", "_A", "_B"}
    assert sorted(one["_A"] + one["_B"]) == sorted(cards)
    assert (one["_A"], one["_B"]) == (other["_B"], other["_A"])


def test_several_groups_need_a_policy(api: Api, host: str, cards: list[str]) -> None:
    assert refused(api, "resources1=VGPU:1&resources2=VGPU:1") == "undefined_code"
    refused(api, "resources1=VGPU:1&resources2=VGPU:1&group_policy=other")
    assert taken(asked(api, "resources1=VCPU:1&resources2=VCPU:2&group_policy=none")) == [{host: {"VCPU": 3}}]
    assert taken(asked(api, "resources1=VCPU:1&resources2=VCPU:2&group_policy=isolate")) == []


def test_same_subtree_and_groups_without_resources(api: Api) -> None:
    root = api.provider("root", VCPU=8)
    numa = [api.provider(f"numa{number}", parent=root, MEMORY_MB=64) for number in range(2)]
    cards = [api.provider(f"card{number}", parent=numa[number], VGPU=1) for number in range(2)]
    traits(api, numa[1], "HW_NUMA_ROOT", "CUSTOM_FAST")
    query = "resources_CARD=VGPU:1&required_NUMA=CUSTOM_FAST&group_policy=none&same_subtree=_CARD,_NUMA"

    refused(api, query, "1.35")
    assert taken(asked(api, query, "1.36")) == [{cards[1]: {"VGPU": 1}}]
    assert len(taken(asked(api, "resources_CARD=VGPU:1"))) == 2

    assert refused(api, "resources_A=VGPU:1&same_subtree=_A,_B") == "query.bad_value"
    assert refused(api, "resources_A=VGPU:1&required_B=CUSTOM_FAST&group_policy=none") == "query.bad_value"
    assert refused(api, "required_B=CUSTOM_FAST&same_subtree=_B") == "query.missing_value"
    assert refused(api, "") == "query.missing_value"
    assert refused(api, "required=CUSTOM_FAST", "1.35") == "undefined_code"
    refused(api, "required=CUSTOM_FAST", "1.24")


# --- Traits, aggregates, trees ----------------------------------------------------------------------------------------


def test_traits_are_required_forbidden_and_any_of(api: Api, host: str) -> None:
    other = api.provider("other", VCPU=8)
    traits(api, host, "CUSTOM_A", "CUSTOM_B")
    traits(api, other, "CUSTOM_B", "CUSTOM_C")

    def served(query: str, version: str = NEWEST) -> list[str]:
        return [uuid for one in taken(asked(api, f"resources=VCPU:1&{query}", version)) for uuid in one]

    refused(api, "resources=VCPU:1&required=CUSTOM_A", "1.16")
    assert served("required=CUSTOM_A", "1.17") == [host]
    refused(api, "resources=VCPU:1&required=!CUSTOM_A", "1.21")
    assert served("required=CUSTOM_B,!CUSTOM_A", "1.22") == [other]
    refused(api, "resources=VCPU:1&required=in:CUSTOM_A,CUSTOM_C", "1.38")
    assert served("required=in:CUSTOM_A,CUSTOM_C") == [host, other]
    # Before 1.39 only the last parameter is used; since then each.
    assert served("required=CUSTOM_A&required=CUSTOM_C", "1.38") == [other]
    assert served("required=CUSTOM_A&required=CUSTOM_C") == []
    assert served("required=in:CUSTOM_A,CUSTOM_C&required=!CUSTOM_C") == [host]
    for bad in ("CUSTOM_NONE", "CUSTOM_A,!CUSTOM_A", "", "a", "in:CUSTOM_A&required=!CUSTOM_A"):
        refused(api, f"resources=VCPU:1&required={bad}")


def test_root_required_applies_to_the_traits_of_the_root(api: Api, host: str, cards: list[str]) -> None:
    traits(api, cards[0], "CUSTOM_A")
    traits(api, host, "CUSTOM_B")
    refused(api, "resources=VGPU:1&root_required=CUSTOM_B", "1.34")
    assert len(taken(asked(api, "resources=VGPU:1&root_required=CUSTOM_B,!CUSTOM_A", "1.35"))) == 2
    assert taken(asked(api, "resources=VGPU:1&root_required=CUSTOM_A")) == []
    assert refused(api, "resources=VGPU:1&root_required=CUSTOM_A&root_required=CUSTOM_B") == "query.duplicate_key"
    assert refused(api, "resources=VGPU:1&root_required=CUSTOM_A,!CUSTOM_A") == "query.bad_value"
    assert refused(api, "resources=VGPU:1&root_required=in:CUSTOM_A,CUSTOM_B") == "undefined_code"


def test_root_required_may_require_256_traits(api: Api, host: str) -> None:
    names = sorted(os_traits.get_traits())[:257]
    assert taken(asked(api, f"resources=VGPU:1&root_required={','.join(names[:256])}")) == []
    reason = asked_in_vain(api, f"resources=VGPU:1&root_required={','.join(names)}")["detail"]
    assert "root_required has more than 256 conditions" in reason


def test_every_form_of_member_of_is_understood(api: Api, host: str) -> None:
    other = api.provider("other", VCPU=8)
    one, two, both = (ids.fresh() for _ in range(3))
    aggregates(api, host, one, both)
    aggregates(api, other, two, both)

    def served(query: str, version: str = NEWEST) -> set[str]:
        return {uuid for found in taken(asked(api, f"resources=VCPU:1&{query}", version)) for uuid in found}

    refused(api, f"resources=VCPU:1&member_of={one}", "1.20")
    assert served(f"member_of={one}", "1.21") == {host}
    assert served(f"member_of=in:{one},{two}", "1.21") == {host, other}
    refused(api, f"resources=VCPU:1&member_of={one}&member_of={both}", "1.23")
    assert served(f"member_of={two}&member_of={both}", "1.24") == {other}
    refused(api, f"resources=VCPU:1&member_of=!{one}", "1.31")
    assert served(f"member_of=!{one}", "1.32") == {other}
    assert served(f"member_of=!in:{one},{two}", "1.32") == set()
    refused(api, f"resources=VCPU:1&member_of=in:!{one}")
    refused(api, "resources=VCPU:1&member_of=no-uuid")


def test_in_tree_may_name_any_provider_of_the_tree(api: Api, host: str, cards: list[str]) -> None:
    api.provider("other", VCPU=8)
    refused(api, f"resources=VCPU:1&in_tree={host}", "1.30")
    assert taken(asked(api, f"resources=VCPU:1&in_tree={cards[1]}", "1.31")) == [{host: {"VCPU": 1}}]
    assert taken(asked(api, f"resources1=VCPU:1&in_tree1={host}", "1.31")) == [{host: {"VCPU": 1}}]
    refused(api, "resources=VCPU:1&in_tree=no-uuid")


# --- Limits -----------------------------------------------------------------------------------------------------------


def test_a_limit_applies_to_candidates_and_their_summaries(api: Api) -> None:
    hosts = [api.provider(f"host{number}", VCPU=8) for number in range(5)]
    refused(api, "resources=VCPU:1&limit=2", "1.15")
    found = asked(api, "resources=VCPU:1&limit=2", "1.16")
    assert taken(found) == [{host: {"VCPU": 1}} for host in hosts[:2]]
    assert found["provider_summaries"].keys() == set(hosts[:2])
    assert len(taken(asked(api, "resources=VCPU:1"))) == 5
    assert len(taken(asked(api, f"resources=VCPU:1&limit={'9' * 3000}"))) == 5
    for bad in ("0", "-1", "a", "1.5", ""):
        refused(api, f"resources=VCPU:1&limit={bad}")


@pytest.mark.parametrize(
    "resources", ["", "VCPU", "VCPU:", "VCPU:0", "VCPU:-1", "VCPU:1.5", "VCPU:1,", "CUSTOM_NONE:1"]
)
def test_invalid_amounts_are_refused(api: Api, host: str, resources: str) -> None:
    refused(api, f"resources={resources}")


@pytest.mark.parametrize("amount", ["99999999999", "9" * 30])
def test_an_extremely_large_amount_has_no_candidates(api: Api, host: str, amount: str) -> None:
    assert taken(asked(api, f"resources=VCPU:{amount}")) == []
    assert api.get(f"/resource_providers?resources=VCPU:{amount}") == {"resource_providers": []}


def test_the_first_limit_and_the_last_amount_are_used(api: Api, host: str, cards: list[str]) -> None:
    assert len(taken(asked(api, "resources=VGPU:1&limit=1&limit=2"))) == 1
    assert taken(asked(api, "resources=VCPU:99,VCPU: 2")) == [{host: {"VCPU": 2}}]
    refused(api, "resources=VGPU:1&limit=x&limit=2")


def test_an_unknown_parameter_is_refused(api: Api, host: str) -> None:
    refused(api, "resources=VCPU:1&more=1")
    refused(api, "resources=VCPU:1&resources_$=VCPU:1")


def test_at_most_64_groups_and_64_subtrees_are_taken(api: Api, host: str) -> None:
    def groups(number: int) -> str:
        return "&".join(f"resources{one}=VCPU:1" for one in range(1, number + 1))

    subtree = "resources1=VCPU:1" + "&same_subtree=1" * 64

    for accepted in (f"{groups(64)}&group_policy=none", subtree):
        api.does("GET", f"/allocation_candidates?{accepted}")
    more_groups = asked_in_vain(api, f"{groups(65)}&group_policy=none")
    more_subtrees = asked_in_vain(api, f"{subtree}&same_subtree=1")

    assert more_groups["detail"] == "Invalid query string parameters: There are more than 64 groups."
    assert more_subtrees["detail"] == "Invalid query string parameters: There are more than 64 values of same_subtree."


def test_a_too_expensive_query_is_400_with_advice(api: Api) -> None:
    host = api.provider("host", VCPU=1)
    for number, (name, inventory) in enumerate(hard_searches.DEVICES.items()):
        traits(api, api.provider(name, parent=host, VGPU=inventory.total), *hard_searches.traits_of(number))

    answer = asked_in_vain(api, hard_searches.query())

    assert "fewer suffixed groups" in answer["detail"]
