"""Test aggregates and traits over HTTP: those of providers, and the names of traits."""

from typing import Any

import pytest
from support.http.replies import Http

from moorage import ids

# --- Aggregates -----------------------------------------------------------------------------------------------------


def aggregates_of(provider: str) -> str:
    return f"/resource_providers/{provider}/aggregates"


def test_before_1_19_aggregates_are_a_list_and_bump_no_generation(http: Http) -> None:
    provider, one, two = http.provider(), ids.fresh(), ids.fresh()

    assert http.get(aggregates_of(provider), "1.1").body == {"aggregates": []}
    assert http.put(aggregates_of(provider), [two, one.upper()], "1.18").body == {"aggregates": [two, one]}
    assert set(http.get(aggregates_of(provider), "1.18").body["aggregates"]) == {one, two}
    assert http.put(aggregates_of(provider), [], "1.1").body == {"aggregates": []}
    assert http.generation(provider) == 0
    assert (
        http.put(aggregates_of(provider), {"aggregates": [], "resource_provider_generation": 0}, "1.18").status == 400
    )


def test_from_1_19_aggregates_bump_the_named_generation(http: Http) -> None:
    provider, one = http.provider(), ids.fresh()
    wanted = {"aggregates": [one], "resource_provider_generation": 0}

    assert http.put(aggregates_of(provider), [one], "1.19").status == 400
    written = http.put(aggregates_of(provider), wanted, "1.19")
    assert written.body == {"aggregates": [one], "resource_provider_generation": 1}
    assert written.headers["Cache-Control"] == "no-cache"
    assert http.get(aggregates_of(provider), "1.19").body == written.body
    stale = http.put(aggregates_of(provider), wanted)
    assert (stale.status, stale.code) == (409, "placement.concurrent_update")
    # Writing the same aggregates bumps the generation as well.
    assert http.put(aggregates_of(provider), written.body).body["resource_provider_generation"] == 2


@pytest.mark.parametrize("aggregates", [["a"], [5], "a", None, ["5d1a7b2e-0000-4000-8000-000000000000"] * 2])
def test_invalid_aggregates_are_400(http: Http, aggregates: object) -> None:
    provider = http.provider()
    body = {"aggregates": aggregates, "resource_provider_generation": 0}

    assert http.put(aggregates_of(provider), body).status == 400
    assert http.put(aggregates_of(ids.fresh()), body).status == 404


def test_aggregates_are_unique_and_a_long_list_of_objects_is_refused_at_once(http: Http) -> None:
    provider, twice = http.provider(), [ids.fresh()] * 2
    # To compare each pair of these takes minutes, longer than this client waits.
    objects = [{"number": number} for number in range(20_000)]

    for version, form in (
        ("1.1", lambda aggregates: aggregates),
        ("1.19", lambda aggregates: {"aggregates": aggregates, "resource_provider_generation": 0}),
    ):
        for wrong in (objects, ["a", *objects]):
            assert http.put(aggregates_of(provider), form(wrong), version).status == 400
        assert "Failed validating 'uniqueItems'" in http.put(aggregates_of(provider), form(twice), version).text


def test_of_a_body_with_very_many_faults_one_of_the_first_is_reported(http: Http) -> None:
    reply = http.put(aggregates_of(http.provider()), [5] * 1025, "1.1")

    # The length of the list would be preferred, but it comes after the faults of the items.
    assert reply.status == 400
    assert "Failed validating 'type'" in reply.error["detail"]


# --- Traits of providers --------------------------------------------------------------------------------------------


def traits_of(provider: str) -> str:
    return f"/resource_providers/{provider}/traits"


def test_traits_of_a_provider_bump_the_generation_when_they_change(http: Http) -> None:
    provider, custom = http.provider(), http.name()
    http.done(http.put(f"/traits/{custom}"))
    wanted: dict[str, Any] = {"traits": ["HW_CPU_X86_AVX2", custom], "resource_provider_generation": 0}

    assert http.get(traits_of(provider), "1.6").body == {"traits": [], "resource_provider_generation": 0}
    written = http.put(traits_of(provider), wanted, "1.6").body
    assert (set(written["traits"]), written["resource_provider_generation"]) == (set(wanted["traits"]), 1)
    assert http.get(traits_of(provider)).body == written
    assert http.put(traits_of(provider), written).body["resource_provider_generation"] == 1
    stale = http.put(traits_of(provider), {**wanted, "traits": []})
    assert (stale.status, stale.code) == (409, "placement.concurrent_update")
    assert http.delete(traits_of(provider)).status == 204
    assert http.delete(traits_of(provider)).status == 204
    assert http.get(traits_of(provider)).body == {"traits": [], "resource_provider_generation": 2}


@pytest.mark.parametrize("traits", [["CUSTOM_NOBODY_HAS"], ["a"], [""], "A", None])
def test_invalid_traits_are_400(http: Http, traits: object) -> None:
    provider = http.provider()
    body = {"traits": traits, "resource_provider_generation": 0}

    assert http.put(traits_of(provider), body).status == 400
    assert http.put(traits_of(provider), {"traits": []}).status == 400
    assert http.generation(provider) == 0


def test_a_bad_body_takes_precedence_over_a_missing_provider_of_traits(http: Http) -> None:
    missing = traits_of(ids.fresh())

    assert http.put(missing, {"traits": []}).status == 400
    assert http.put(missing, {"traits": [], "resource_provider_generation": 0}).status == 404


def test_a_repeated_trait_counts_once(http: Http) -> None:
    body = {"traits": ["HW_CPU_X86_AVX2"] * 2, "resource_provider_generation": 0}

    assert http.put(traits_of(http.provider()), body).body["traits"] == ["HW_CPU_X86_AVX2"]


# --- The names of traits --------------------------------------------------------------------------------------------


def test_a_trait_is_created_used_and_deleted(http: Http) -> None:
    trait = http.name()
    path = f"/traits/{trait}"
    assert http.get(path).status == 404

    created = http.put(path)
    assert (created.status, created.body) == (201, None)
    assert created.headers["Location"] == http.url + path
    assert http.put(path).status == 204
    assert http.get(path).status == 204
    provider = http.provider()
    http.done(http.put(traits_of(provider), {"traits": [trait], "resource_provider_generation": 0}))
    assert http.delete(path).status == 409
    http.done(http.delete(traits_of(provider)))
    assert http.delete(path).status == 204
    assert http.delete(path).status == 404
    assert http.put(path).status == 201


def test_standard_traits_cannot_be_changed(http: Http) -> None:
    assert http.get("/traits/HW_CPU_X86_AVX2").status == 204
    assert http.put("/traits/HW_CPU_X86_AVX2").status == 400
    assert http.delete("/traits/HW_CPU_X86_AVX2").status == 400
    assert http.delete("/traits/NO_SUCH_TRAIT").status == 404
    for bad in ("CUSTOM_a", "CUSTOM_", "CUSTOM_" + "A" * 256, "CUSTOM-A", "CUSTOM_%20A"):
        assert http.put(f"/traits/{bad}").status == 400


def test_traits_are_listed_by_name_and_by_whether_a_provider_has_them(http: Http) -> None:
    one, two = http.name(), http.name()
    for trait in (one, two):
        http.done(http.put(f"/traits/{trait}"))
    http.done(http.put(traits_of(http.provider()), {"traits": [one], "resource_provider_generation": 0}))

    def listed(query: str) -> set[str]:
        return set(http.get(f"/traits?{query}", "1.6").body["traits"])

    assert listed("") >= {one, two, "HW_CPU_X86_AVX2"}
    assert listed(f"name=in:{one},HW_CPU_X86_AVX2,NO_SUCH_TRAIT") == {one, "HW_CPU_X86_AVX2"}
    assert listed(f"name=startswith:{one[:20]}") == {one}
    assert listed("associated=true") >= {one}
    assert two not in listed("associated=true")
    assert listed(f"name=in:{one},{two}&associated=False") == {two}
    assert listed("name=like:A") == listed("")
    for bad in ("name=A", "name=in", "name=startswith", "name=", "associated=perhaps", "associated="):
        assert http.get(f"/traits?{bad}").status == 400
