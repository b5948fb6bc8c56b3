"""Test the phrases that clients look for in the details of errors: whole, and with the data of the request."""

from pathlib import Path
from typing import Any

import pytest
from support.http.differential.servers import ours
from support.http.replies import Http

from moorage import ids
from placement_store.http.phrases import Phrase, before

NOBODY = ids.derived("phrases", "nobody")


def test_a_phrase_that_is_a_sentence_stays_one_before_the_next() -> None:
    assert before("More.", [Phrase.INVALID_QUERY, Phrase.BAD_MEMBER_OF, Phrase.GOT], sent="x") == (
        "Invalid query string parameters: Expected 'member_of' parameter to contain valid UUID(s). Got: x. More."
    )
    assert before("More.", [Phrase.UPDATE_CONFLICT, Phrase.RESERVED_ALL]) == (
        "update conflict: greater than or equal to total. More."
    )
    assert before("More.", []) == "More."


@pytest.mark.parametrize(
    ("version", "path", "phrase"),
    [
        ("1.39", "/resource_providers?member_of=x", "Expected 'member_of' parameter to contain valid UUID(s). Got: x"),
        (
            "1.39",
            f"/resource_providers?member_of={NOBODY},{NOBODY}",
            "must be prefixed with the 'in:' or '!in:' keyword using the valid microversion. Got: ",
        ),
        (
            "1.39",
            "/resource_providers?resources=VCPU:x",
            "Requested resource VCPU expected positive integer amount. Got: x",
        ),
        ("1.39", "/resource_providers?resources=VCPU:-2", "Requested resource VCPU requires amount >= 1. Got: -2"),
        (
            "1.21",
            "/resource_providers?required=!CUSTOM_T",
            "Expected 'required' parameter value of the form: HW_CPU_X86_VMX,CUSTOM_MAGIC. Got: !CUSTOM_T",
        ),
        (
            "1.38",
            "/resource_providers?required=in:CUSTOM_T",
            "The format 'in:HW_CPU_X86_VMX,CUSTOM_MAGIC' only supported since microversion 1.39. Got: in:CUSTOM_T",
        ),
        (
            "1.39",
            "/allocation_candidates?resources1@=VCPU:1",
            "'^resources([a-zA-Z0-9_-]{1,64})?$'",
        ),
    ],
)
def test_phrases_about_queries_are_whole(http: Http, version: str, path: str, phrase: str) -> None:
    reply = http.get(path, version)
    assert reply.status == 400
    assert phrase in reply.error["detail"]


def test_phrases_name_the_provider_or_the_consumer(http: Http) -> None:
    provider, consumer = http.provider(VCPU=4), ids.fresh()
    inventories = f"/resource_providers/{provider}/inventories"
    full: dict[str, Any] = {"total": 1, "reserved": 1}
    own = {"name": "own", "uuid": NOBODY, "parent_provider_uuid": NOBODY}
    generation = http.generation(provider)
    held = {"allocations": {provider: {"resources": {"CUSTOM_NONE": 1}}}, "project_id": "p", "user_id": "u"}
    cases = {
        f"Unable to create inventory for resource provider {provider}: ": [
            http.post(inventories, {"resource_class": "DISK_GB", **full}, "1.25"),
            http.post(inventories, {"resource_class": "DISK_GB", **full, "reserved": 2}),
            http.post(inventories, {"resource_class": "CUSTOM_NONE", "total": 1}),
        ],
        f"Unable to update inventory for resource provider {provider}: ": [
            http.put(f"{inventories}/VCPU", {"resource_provider_generation": generation, **full}, "1.25"),
            http.put(inventories, {"resource_provider_generation": generation, "inventories": {"VCPU": full}}, "1.25"),
            http.put(f"{inventories}/VCPU", {"resource_provider_generation": generation, **full, "reserved": 2}),
        ],
        f'Unable to create resource provider "own", {NOBODY}: parent provider UUID cannot': [
            http.post("/resource_providers", own)
        ],
        f"Unable to save resource provider {provider}: parent provider UUID": [
            http.put(f"/resource_providers/{provider}", {"name": "own", "parent_provider_uuid": NOBODY})
        ],
        f"Unable to allocate inventory for consumer {consumer}: No such resource class CUSTOM_NONE": [
            http.put(f"/allocations/{consumer}", held, "1.12")
        ],
        "'instance' does not match '^[A-Z0-9_]+$'": [
            http.put(f"/allocations/{consumer}", {**held, "consumer_generation": None, "consumer_type": "instance"})
        ],
    }
    for phrase, replies in cases.items():
        for reply in replies:
            assert reply.status == 400
            assert phrase in reply.error["detail"]


def test_a_content_length_that_is_no_number_is_refused_with_the_phrase_for_it(http: Http, tmp_path: Path) -> None:
    # waitress refuses it itself; other servers leave it to the application.
    over_the_network = http.get("/", headers={"Content-Length": "none"}).error
    with ours(tmp_path) as application:
        [inside] = application.ask("GET", "/", None, None, {"Content-Length": "none"}).json["errors"]

    for error in (over_the_network, inside):
        assert error["status"] == 400
        assert error["detail"].startswith("content-length header must be an integer. ")


def test_a_long_value_does_not_hide_what_is_wrong_with_it(http: Http) -> None:
    provider = http.provider()
    body = {"resource_provider_generation": 0, "aggregates": [ids.derived("many", str(n)) for n in range(1025)]}
    reply = http.put(f"/resource_providers/{provider}/aggregates", body)
    assert reply.status == 400
    assert "is too long" in reply.error["detail"]
    assert len(reply.error["detail"]) < 1000


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_what_a_caller_may_not_do_is_refused_before_a_malformed_uuid_is_not_found(http: Http, method: str) -> None:
    body = {"name": "x"} if method == "PUT" else None
    for headers, status in (({"X-Roles": "member"}, 403), ({}, 404)):
        assert http.call(method, "/resource_providers/no-uuid", body, headers=headers).status == status
    assert http.get("/resource_providers/no-uuid", headers={"Accept": "text/html"}).status == 406
