"""Test reshapes over HTTP: only services may request them, and they are atomic."""

from typing import Any

import pytest
from support.http.api import Api

from moorage import ids

SERVICE = {"X_Auth_Token": "nova", "X_Roles": "service"}
OWNER = {"project_id": "p", "user_id": "u", "consumer_type": "INSTANCE"}


@pytest.fixture
def host(api: Api) -> str:
    return api.provider("host", VCPU=8, VGPU=2)


@pytest.fixture
def card(api: Api, host: str) -> str:
    return api.provider("card", parent=host)


@pytest.fixture
def consumer(api: Api, host: str) -> str:
    uuid = ids.fresh()
    held = {host: {"resources": {"VCPU": 2, "VGPU": 1}}}
    api.does("PUT", f"/allocations/{uuid}", {"allocations": held, "consumer_generation": None, **OWNER})
    return uuid


def moved(api: Api, host: str, card: str, consumer: str) -> dict[str, Any]:
    """Return a body that moves the devices of a host to a card."""
    inventories = {
        host: {"resource_provider_generation": api.store.generation(host), "inventories": {"VCPU": {"total": 8}}},
        card: {"resource_provider_generation": 0, "inventories": {"VGPU": {"total": 2}}},
    }
    held = {host: {"resources": {"VCPU": 2}}, card: {"resources": {"VGPU": 1}}}
    return {
        "inventories": inventories,
        "allocations": {consumer: {"allocations": held, "consumer_generation": 1, **OWNER}},
    }


def test_a_reshape_moves_inventories_with_their_allocations(api: Api, host: str, card: str, consumer: str) -> None:
    api.does("POST", "/reshaper", moved(api, host, card, consumer), **SERVICE)
    assert api.store.held(consumer) == {host: {"VCPU": 2}, card: {"VGPU": 1}}
    assert (api.store.used(host), api.store.used(card)) == ({"VCPU": 2}, {"VGPU": 1})
    assert api.store.is_sound()


def test_only_a_service_may_reshape(api: Api, host: str, card: str, consumer: str) -> None:
    api.refused(403, "POST", "/reshaper", moved(api, host, card, consumer))


def test_consumers_have_the_format_of_the_version(api: Api, host: str, card: str, consumer: str) -> None:
    sent = moved(api, host, card, consumer)
    api.refused(400, "POST", "/reshaper", sent, "1.37", **SERVICE)
    del sent["allocations"][consumer]["consumer_type"]
    api.refused(400, "POST", "/reshaper", sent, **SERVICE)
    api.does("POST", "/reshaper", sent, "1.30", **SERVICE)
    assert api.store.consumer(consumer).consumer_type == "INSTANCE"


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("provider generation", 409, "concurrent_update"),
        ("consumer generation", 409, "concurrent_update"),
        ("provider of inventories", 400, "resource_provider.not_found"),
        ("provider of allocations", 400, "undefined_code"),
        ("class", 400, "undefined_code"),
        ("too much", 409, "undefined_code"),
        ("in use", 409, "inventory.inuse"),
    ],
)
def test_a_refused_reshape_changes_nothing(
    api: Api, host: str, card: str, consumer: str, fault: str, status: int, code: str
) -> None:
    sent = moved(api, host, card, consumer)
    inventories, (wanted,) = sent["inventories"], sent["allocations"].values()
    match fault:
        case "provider generation":
            inventories[host]["resource_provider_generation"] += 1
        case "consumer generation":
            wanted["consumer_generation"] = 2
        case "provider of inventories":
            inventories[ids.fresh()] = {"resource_provider_generation": 0, "inventories": {}}
        case "provider of allocations":
            wanted["allocations"][ids.fresh()] = {"resources": {"VGPU": 1}}
        case "class":
            inventories[host]["inventories"]["CUSTOM_NONE"] = {"total": 1}
        case "too much":
            wanted["allocations"][card]["resources"]["VGPU"] = 3
        case "in use":
            sent["allocations"] = {}
    before = (api.store.get(host), api.store.get(card), api.store.consumer(consumer))

    assert api.refused(status, "POST", "/reshaper", sent, **SERVICE) == code

    assert (api.store.get(host), api.store.get(card), api.store.consumer(consumer)) == before


def test_newer_unit_rules_apply_to_an_unchanged_amount(api: Api, host: str, card: str, consumer: str) -> None:
    path = f"/resource_providers/{host}/inventories/VCPU"
    tight = {"total": 8, "max_unit": 1}
    sent = moved(api, host, card, consumer)
    sent["inventories"][host]["inventories"]["VCPU"] = tight
    assert api.refused(409, "POST", "/reshaper", sent, **SERVICE) == "undefined_code"

    api.does("PUT", path, {"resource_provider_generation": api.store.generation(host), **tight})
    held = sent["allocations"][consumer]
    assert api.refused(409, "PUT", f"/allocations/{consumer}", held) == "undefined_code"
    assert api.refused(409, "POST", "/allocations", {consumer: held}) == "undefined_code"


def test_newer_unit_rules_apply_to_a_reduced_amount(api: Api, host: str) -> None:
    uuid, path = ids.fresh(), f"/resource_providers/{host}/inventories/VCPU"

    def wanted(amount: int, generation: int | None) -> dict[str, Any]:
        return {"allocations": {host: {"resources": {"VCPU": amount}}}, "consumer_generation": generation, **OWNER}

    api.does("PUT", f"/allocations/{uuid}", wanted(6, None))
    generation = api.store.generation(host)
    api.does("PUT", path, {"resource_provider_generation": generation, "total": 8, "max_unit": 4})

    assert api.refused(409, "PUT", f"/allocations/{uuid}", wanted(5, 1)) == "undefined_code"
    sent = {
        "inventories": {
            host: {
                "resource_provider_generation": generation + 1,
                "inventories": {"VCPU": {"total": 8, "max_unit": 4}, "VGPU": {"total": 2}},
            }
        },
        "allocations": {uuid: wanted(5, 1)},
    }
    assert api.refused(409, "POST", "/reshaper", sent, **SERVICE) == "undefined_code"
    api.does("PUT", f"/allocations/{uuid}", wanted(4, 1))
