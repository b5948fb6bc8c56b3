"""Test resource classes over HTTP."""

from typing import Any

import pytest
from support.http.replies import Http

from moorage import ids

AT = "/resource_classes"


def test_a_class_is_created_used_and_deleted(http: Http) -> None:
    name = http.name()
    created = http.post(AT, {"name": name}, "1.2")
    assert (created.status, created.body) == (201, None)
    assert created.headers["Location"] == f"{http.url}{AT}/{name}"
    assert http.post(AT, {"name": name}).status == 409

    shown = {"name": name, "links": [{"rel": "self", "href": f"{AT}/{name}"}]}
    assert http.get(f"{AT}/{name}").body == shown
    assert shown in http.get(AT).body["resource_classes"]
    amounts: dict[str, Any] = {name: 1}
    provider = http.provider(**amounts)
    assert http.delete(f"{AT}/{name}").status == 409
    http.done(http.delete(f"/resource_providers/{provider}/inventories"))
    assert http.delete(f"{AT}/{name}").status == 204
    assert http.delete(f"{AT}/{name}").status == 404
    assert http.get(f"{AT}/{name}").status == 404
    assert shown not in http.get(AT).body["resource_classes"]


def test_from_1_7_a_class_is_created_by_its_path(http: Http) -> None:
    path = f"{AT}/{http.name()}"

    created = http.put(path, None, "1.7")
    assert (created.status, created.body) == (201, None)
    assert created.headers["Location"] == http.url + path
    assert http.put(path, None, "1.7").status == 204


@pytest.mark.parametrize("name", ["VCPU", "MINE", "CUSTOM_a", "CUSTOM_", "custom_A", "CUSTOM_" + "A" * 256])
def test_a_name_that_is_not_a_custom_one_is_400(http: Http, name: str) -> None:
    assert http.post(AT, {"name": name}).status == 400
    assert http.put(f"{AT}/{name}").status == 400


def test_standard_classes_cannot_be_changed(http: Http) -> None:
    assert http.get(f"{AT}/VCPU").body["name"] == "VCPU"
    assert http.delete(f"{AT}/VCPU").status == 400
    assert http.delete(f"{AT}/NO_SUCH_CLASS").status == 404
    assert http.put(f"{AT}/VCPU", {"name": http.name()}, "1.2").status == 400


def test_before_1_7_a_put_renames_a_class_with_its_inventories_and_allocations(http: Http) -> None:
    old, new, consumer = http.name(), http.name(), ids.fresh()
    http.done(http.post(AT, {"name": old}))
    amounts: dict[str, Any] = {old: 8}
    provider = http.provider(VCPU=1, **amounts)
    http.done(http.allocate(consumer, provider, **{old: 3}))
    generation = http.generation(provider)

    renamed = http.put(f"{AT}/{old}", {"name": new}, "1.6")
    assert (renamed.status, renamed.body["name"]) == (200, new)
    assert http.get(f"{AT}/{old}").status == 404
    assert http.get(f"/resource_providers/{provider}/usages").body == {
        "resource_provider_generation": generation,
        "usages": {"VCPU": 0, new: 3},
    }
    held = http.get(f"/allocations/{consumer}").body["allocations"][provider]["resources"]
    assert held == {new: 3}
    # The allocations have the new name, and the old name can be created again.
    assert http.put(f"{AT}/{old}", {"name": http.name()}, "1.6").status == 404
    assert http.post(AT, {"name": old}).status == 201
    assert http.put(f"{AT}/{old}", {"name": new}, "1.6").status == 409
    assert http.delete(f"/allocations/{consumer}").status == 204
    assert http.get(f"/resource_providers/{provider}/usages").body["usages"] == {"VCPU": 0, new: 0}
