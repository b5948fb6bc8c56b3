"""Test allocations of consumers over HTTP, written and read in the format of every API version."""

from typing import Any

import pytest
from sqlalchemy import func, select
from support.http.api import Api
from support.http.replies import NEWEST

from moorage import ids
from placement_store.schema import consumers

OWNER = {"project_id": "project", "user_id": "user"}


def body(allocations: dict[str, dict[str, int]], generation: int | None = None, version: str = NEWEST) -> Any:
    """Return a body in the format of a version."""
    minor = int(version.partition(".")[2])
    by_provider: Any = {uuid: {"resources": resources} for uuid, resources in allocations.items()}
    listed = [{"resource_provider": {"uuid": uuid}, "resources": res} for uuid, res in allocations.items()]
    sent: dict[str, Any] = {"allocations": by_provider if minor >= 12 else listed}
    if minor >= 8:
        sent |= OWNER
    if minor >= 28:
        sent["consumer_generation"] = generation
    if minor >= 38:
        sent["consumer_type"] = "INSTANCE"
    return sent


@pytest.fixture
def host(api: Api) -> str:
    return api.provider("host", VCPU=8, MEMORY_MB=8192)


def path_of(consumer: str) -> str:
    return f"/allocations/{consumer}"


def consumers_known(api: Api) -> int:
    return int(api.store.scalar(select(func.count()).select_from(consumers)))


# --- Format of the body -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", "1.8", "1.12", "1.28", "1.34", "1.38", NEWEST])
def test_every_version_accepts_its_own_body_format_and_refuses_others(api: Api, host: str, version: str) -> None:
    uuid = ids.fresh()
    for other in {"1.0", "1.8", "1.12", "1.28", "1.38"} - {version}:
        sent = body({host: {"VCPU": 2}}, version=other)
        if sent.keys() != body({}, version=version).keys():
            api.refused(400, "PUT", path_of(uuid), sent, version)
    api.does("PUT", path_of(uuid), body({host: {"VCPU": 2}}, version=version), version)
    assert api.store.held(uuid) == {host: {"VCPU": 2}}


def test_each_version_shows_the_consumer_fields_that_it_has(api: Api, host: str) -> None:
    uuid = ids.fresh()
    api.does("PUT", path_of(uuid), body({host: {"VCPU": 2}}))
    held = {"allocations": {host: {"generation": 2, "resources": {"VCPU": 2}}}}
    assert api.get(path_of(uuid), "1.11") == held
    assert api.get(path_of(uuid), "1.12") == api.get(path_of(uuid), "1.27") == held | OWNER
    assert api.get(path_of(uuid), "1.28") == held | OWNER | {"consumer_generation": 1}
    assert api.get(path_of(uuid)) == held | OWNER | {"consumer_generation": 1, "consumer_type": "INSTANCE"}


def test_mappings_are_accepted_and_provider_generations_are_ignored(api: Api, host: str) -> None:
    sent = body({host: {"VCPU": 2}}) | {"mappings": {"": [host], "_NET1": [host]}}
    sent["allocations"][host]["generation"] = 77
    api.does("PUT", path_of(ids.fresh()), sent)
    api.refused(400, "PUT", path_of(ids.fresh()), sent, "1.28")


def test_a_consumer_written_before_1_38_has_no_type_until_a_newer_version_writes_it(api: Api, host: str) -> None:
    uuid = ids.fresh()
    api.does("PUT", path_of(uuid), body({host: {"VCPU": 2}}, version="1.28"), "1.28")
    assert api.get(path_of(uuid))["consumer_type"] == "unknown"
    assert api.get("/usages?project_id=project") == {"usages": {"unknown": {"consumer_count": 1, "VCPU": 2}}}

    api.does("PUT", path_of(uuid), body({host: {"VCPU": 2}}, 1))
    api.does("PUT", path_of(uuid), body({host: {"VCPU": 3}}, 2, "1.28"), "1.28")

    assert api.get(path_of(uuid))["consumer_type"] == "INSTANCE"


def test_a_consumer_written_before_1_8_has_a_default_project_and_user(api: Api, host: str) -> None:
    uuid, nobody = ids.fresh(), "00000000-0000-0000-0000-000000000000"
    api.does("PUT", path_of(uuid), body({host: {"VCPU": 2}}, version="1.0"), "1.0")
    found = api.get(path_of(uuid))
    assert (found["project_id"], found["user_id"]) == (nobody, nobody)


# --- Generations of consumers -----------------------------------------------------------------------------------------


def test_a_consumers_generation_is_compared(api: Api, host: str) -> None:
    uuid = ids.fresh()
    assert api.refused(409, "PUT", path_of(uuid), body({host: {"VCPU": 1}}, 0)) == "concurrent_update"
    api.does("PUT", path_of(uuid), body({host: {"VCPU": 1}}))
    for named in (None, 0, 2):
        assert api.refused(409, "PUT", path_of(uuid), body({host: {"VCPU": 2}}, named)) == "concurrent_update"
    api.does("PUT", path_of(uuid), body({host: {"VCPU": 2}}, 1))
    assert api.get(path_of(uuid))["consumer_generation"] == 2


def test_before_1_28_the_last_write_wins(api: Api, host: str) -> None:
    uuid = ids.fresh()
    for amount in (1, 2):
        api.does("PUT", path_of(uuid), body({host: {"VCPU": amount}}, version="1.27"), "1.27")
    assert api.store.held(uuid) == {host: {"VCPU": 2}}


def test_a_cleared_consumer_is_deleted_and_can_be_created_again(api: Api, host: str) -> None:
    uuid = ids.fresh()
    api.does("PUT", path_of(uuid), body({host: {"VCPU": 1}}))
    api.refused(400, "PUT", path_of(uuid), body({}, version="1.27"), "1.27")
    api.does("PUT", path_of(uuid), body({}, 1))

    assert api.get(path_of(uuid)) == {"allocations": {}}
    assert consumers_known(api) == 0
    assert api.refused(409, "PUT", path_of(uuid), body({host: {"VCPU": 1}}, 1)) == "concurrent_update"
    api.does("PUT", path_of(uuid), body({host: {"VCPU": 1}}))


def test_a_refused_put_leaves_no_consumer_behind(api: Api, host: str) -> None:
    uuid = ids.fresh()
    assert api.refused(400, "PUT", path_of(uuid), body({ids.fresh(): {"VCPU": 1}})) == "undefined_code"
    assert api.refused(400, "PUT", path_of(uuid), body({host: {"CUSTOM_NONE": 1}})) == "undefined_code"
    assert api.refused(409, "PUT", path_of(uuid), body({host: {"VCPU": 9}})) == "undefined_code"
    api.does("PUT", path_of(uuid), body({}))
    assert consumers_known(api) == 0

    api.does("PUT", path_of(uuid), body({host: {"VCPU": 1}}))


# --- Consumers written over RPC ---------------------------------------------------------------------------------------


def test_claims_over_rpc_and_puts_over_http_see_each_other(api: Api, host: str) -> None:
    claimed, put = ids.fresh(), ids.fresh()
    api.store.claim(claimed, {host: {"VCPU": 3}})
    api.does("PUT", path_of(put), body({host: {"VCPU": 4}}))

    assert api.get(path_of(claimed))["allocations"][host]["resources"] == {"VCPU": 3}
    assert api.store.used(host)["VCPU"] == 7
    api.refused(409, "PUT", path_of(ids.fresh()), body({host: {"VCPU": 2}}))


def test_a_consumer_released_over_rpc_does_not_exist_over_http(api: Api, host: str) -> None:
    uuid = ids.fresh()
    api.store.claim(uuid, {host: {"VCPU": 3}})
    api.store.delete(uuid)

    assert api.get(path_of(uuid)) == {"allocations": {}}
    api.refused(404, "DELETE", path_of(uuid))
    api.does("PUT", path_of(uuid), body({host: {"VCPU": 1}}))
    assert api.get(path_of(uuid))["consumer_generation"] == 3


# --- Several consumers at once ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.13", "1.28", "1.34", NEWEST])
def test_a_post_is_atomic(api: Api, host: str, version: str) -> None:
    first, second = ids.fresh(), ids.fresh()
    small, large = body({host: {"VCPU": 2}}, version=version), body({host: {"VCPU": 7}}, version=version)
    api.refused(409, "POST", "/allocations", {first: small, second: large}, version)
    assert consumers_known(api) == 0

    api.does("POST", "/allocations", {first: small, second: body({}, version=version)}, version)

    assert (api.store.used(host)["VCPU"], consumers_known(api)) == (2, 1)


def test_one_post_moves_allocations_from_one_consumer_to_another(api: Api, host: str) -> None:
    instance, migration = ids.fresh(), ids.fresh()
    other = api.provider("other", VCPU=8)
    api.does("PUT", path_of(instance), body({host: {"VCPU": 8}}))
    moved = {migration: body({host: {"VCPU": 8}}), instance: body({other: {"VCPU": 8}}, 1)}
    api.does("POST", "/allocations", moved)
    assert (api.store.held(instance), api.store.held(migration)) == ({other: {"VCPU": 8}}, {host: {"VCPU": 8}})


# --- Releases ---------------------------------------------------------------------------------------------------------


def test_a_delete_of_a_consumer_without_allocations_is_404(api: Api, host: str) -> None:
    uuid = ids.fresh()
    api.does("PUT", path_of(uuid), body({host: {"VCPU": 1}}))
    generation = api.store.generation(host)
    api.does("DELETE", path_of(uuid))
    assert (api.store.generation(host), consumers_known(api)) == (generation, 0)
    for nothing in (uuid, ids.fresh(), "no-uuid"):
        api.refused(404, "DELETE", path_of(nothing))
    assert api.get(path_of("no-uuid")) == {"allocations": {}}


# --- Invalid bodies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"allocations": {"no-uuid": {"resources": {"VCPU": 1}}}},
        {"allocations": {ids.fresh(): {"resources": {}}}},
        {"allocations": {ids.fresh(): {"resources": {"VCPU": 0}}}},
        {"allocations": {ids.fresh(): {"resources": {"VCPU": 1.5}}}},
        {"allocations": {ids.fresh(): {"resources": {"vcpu": 1}}}},
        {"allocations": {ids.fresh(): {"resources": {"VCPU": 2**31}}}},
        {"project_id": ""},
        {"project_id": None},
        {"consumer_generation": "1"},
        {"consumer_type": "instance"},
        {"consumer_type": "unknown"},
        {"more": 1},
    ],
)
def test_a_body_that_violates_its_schema_is_refused(api: Api, host: str, change: dict[str, Any]) -> None:
    api.refused(400, "PUT", path_of(ids.fresh()), body({host: {"VCPU": 1}}) | change)
    api.refused(400, "POST", "/allocations", {ids.fresh(): body({host: {"VCPU": 1}}) | change})


def test_a_consumer_of_more_providers_than_a_statement_takes_is_refused_for_what_is_wrong(api: Api) -> None:
    sent = body({ids.fresh(): {"A": 1} for _ in range(251_000)})

    reply = api.ask("PUT", path_of(ids.fresh()), sent)

    assert reply.status_code == 400
    assert "that does not exist" in reply.json()["errors"][0]["detail"]


def test_a_consumer_of_very_many_amounts_is_written_like_any_other(api: Api) -> None:
    hosts = [api.provider(f"host {number}", VCPU=2) for number in range(101)]
    uuid, amounts = ids.fresh(), {host: {"VCPU": 1} for host in hosts}

    api.does("PUT", path_of(uuid), body(amounts))
    assert api.refused(409, "PUT", path_of(uuid), body(amounts)) == "concurrent_update"
    api.does("PUT", path_of(uuid), body({host: {"VCPU": 2} for host in hosts}, generation=1))

    assert api.store.held(uuid) == {host: {"VCPU": 2} for host in hosts}


def test_a_uuid_that_is_named_twice_also_in_two_spellings_is_refused(api: Api, host: str) -> None:
    uuid = ids.fresh()
    twice = {host: {"VCPU": 1}, host.upper(): {"VCPU": 1}}
    api.refused(400, "PUT", path_of(uuid), body(twice))
    # Before 1.12, also in one spelling.
    listed = body(twice, version="1.8")
    api.refused(400, "PUT", path_of(uuid), listed, "1.8")
    listed["allocations"][1] = listed["allocations"][0]
    api.refused(400, "PUT", path_of(uuid), listed, "1.8")
    one = body({host: {"VCPU": 1}})
    api.refused(400, "POST", "/allocations", {uuid: one, uuid.upper(): one})
    api.refused(400, "PUT", path_of("no-uuid"), one)
    api.does("PUT", path_of(uuid.upper()), one)
    assert api.store.held(uuid) == {host: {"VCPU": 1}}


@pytest.mark.parametrize(("how", "bumps"), [("DELETE", 0), ("PUT", 1)])
def test_the_loss_of_allocations_bumps_the_generation_of_a_provider_unless_they_are_deleted(
    api: Api, host: str, how: str, bumps: int
) -> None:
    consumer, path = ids.fresh(), f"/resource_providers/{host}"
    api.does("PUT", path_of(consumer), body({host: {"VCPU": 1}}))
    before = api.get(path)["generation"]

    api.does(how, path_of(consumer), body({}, 1) if how == "PUT" else None)

    assert api.get(path)["generation"] - before == bumps


# --- Allocations of a provider, usages --------------------------------------------------------------------------------


def test_the_allocations_of_a_provider_are_listed_by_consumer(api: Api, host: str) -> None:
    uuid = ids.fresh()
    path = f"/resource_providers/{host}/allocations"
    assert api.get(path) == {"resource_provider_generation": 1, "allocations": {}}
    api.does("PUT", path_of(uuid), body({host: {"VCPU": 1}}))
    held = {"resources": {"VCPU": 1}}
    assert api.get(path, "1.27") == {"resource_provider_generation": 2, "allocations": {uuid: held}}
    assert api.get(path)["allocations"] == {uuid: held | {"consumer_generation": 1}}
    api.refused(404, "GET", f"/resource_providers/{ids.fresh()}/allocations")


@pytest.mark.parametrize("how", ["DELETE", "PUT"])
def test_foreign_amounts_of_a_deleted_server_are_shown_and_can_be_released(api: Api, host: str, how: str) -> None:
    uuid = ids.fresh()
    api.store.put(uuid, {host: {"VCPU": 2}})
    api.store.delete(uuid, for_good=True, keep_extras=True)

    shown = api.get(path_of(uuid))
    assert shown["allocations"][host]["resources"] == {"VCPU": 2}
    if how == "PUT":
        api.does("PUT", path_of(uuid), body({}, shown["consumer_generation"]))
    else:
        api.does("DELETE", path_of(uuid))

    assert api.get(path_of(uuid)) == {"allocations": {}}
    assert consumers_known(api) == 0


def test_the_usages_of_a_project_are_shown_by_consumer_type(api: Api, host: str) -> None:
    for kind, user, amount in (("INSTANCE", "user", 1), ("INSTANCE", "other", 2), ("MIGRATION", "user", 3)):
        sent = body({host: {"VCPU": amount}}) | {"user_id": user, "consumer_type": kind}
        api.does("PUT", path_of(ids.fresh()), sent)
    of_project = "/usages?project_id=project"

    assert api.get(of_project, "1.9") == {"usages": {"VCPU": 6}}
    assert api.get(of_project + "&user_id=user", "1.37") == {"usages": {"VCPU": 4}}
    instances, migrations = {"consumer_count": 2, "VCPU": 3}, {"consumer_count": 1, "VCPU": 3}
    assert api.get(of_project) == {"usages": {"INSTANCE": instances, "MIGRATION": migrations}}
    assert api.get(of_project + "&consumer_type=MIGRATION") == {"usages": {"MIGRATION": migrations}}
    assert api.get(of_project + "&consumer_type=all") == {"usages": {"all": {"consumer_count": 3, "VCPU": 6}}}
    assert api.get(of_project + "&consumer_type=unknown") == {"usages": {}}
    assert api.get("/usages?project_id=none") == {"usages": {}}


def test_usages_need_a_project_and_accept_consumer_types_from_1_38(api: Api) -> None:
    api.refused(400, "GET", "/usages")
    api.refused(400, "GET", "/usages?project_id=project&consumer_type=all", version="1.37")
    api.refused(400, "GET", "/usages?project_id=project&consumer_type=instance")
