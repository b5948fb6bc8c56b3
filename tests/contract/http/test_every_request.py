"""Test the rules common to all requests: versions, tokens, policy, media types, and the format of errors."""

import re
from typing import Any

import pytest
import requests
from support.http.replies import Http

from moorage import ids

NOTHING = f"/resource_providers/{ids.derived('http', 'nothing')}"


def test_the_root_shows_the_versions_without_a_token(http: Http) -> None:
    reply = requests.get(http.url + "/", timeout=30)

    [version] = reply.json()["versions"]
    assert (version["min_version"], version["max_version"]) == ("1.0", "1.39")
    assert (version["id"], version["status"]) == ("v1.0", "CURRENT")
    assert requests.get(http.url, timeout=30).json() == reply.json()
    assert "Last-Modified" not in reply.headers
    assert http.get("/", "1.15").headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    ("asked", "used"),
    [
        (None, "1.0"),
        ("placement 1.7", "1.7"),
        ("placement latest", "1.39"),
        ("compute 2.1, placement 1.14", "1.14"),
        ("compute 2.1", "1.0"),
    ],
)
def test_the_answer_names_the_version_that_was_used(http: Http, asked: str | None, used: str) -> None:
    for path in ("/", "/resource_classes", NOTHING, "/nowhere"):
        headers = {} if asked is None else {"OpenStack-API-Version": asked}
        reply = http.get(path, None, headers=headers)

        assert reply.headers["OpenStack-API-Version"] == f"placement {used}"
        assert reply.headers["Vary"] == "openstack-api-version"


@pytest.mark.parametrize("asked", ["1.40", "0.9", "2.0", "1.999"])
def test_an_unsupported_version_is_406_with_the_supported_ones(http: Http, asked: str) -> None:
    reply = http.get("/resource_providers", asked)

    assert reply.status == 406
    assert (reply.error["min_version"], reply.error["max_version"]) == ("1.0", "1.39")


@pytest.mark.parametrize("asked", ["pony", "1", "1.x", "1.2.3"])
def test_a_malformed_version_is_400(http: Http, asked: str) -> None:
    assert http.get("/resource_providers", asked).status == 400


def test_an_error_is_a_document_and_has_a_code_from_1_23(http: Http) -> None:
    old, new = http.get(NOTHING, "1.22"), http.get(NOTHING, "1.23")

    for reply in (old, new):
        assert reply.status == 404
        assert reply.headers["Content-Type"] == "application/json"
        assert reply.error["title"] == "Not Found"
        assert NOTHING.rpartition("/")[2] in reply.error["detail"]
        assert re.fullmatch("req-[0-9a-f-]{36}", reply.error["request_id"])
        assert reply.headers["X-Openstack-Request-Id"] == reply.error["request_id"]
    assert "code" not in old.error
    assert new.code == "placement.undefined_code"


def test_a_request_without_a_token_is_401(http: Http) -> None:
    for path in ("/resource_providers", "/nowhere"):
        reply = requests.get(http.url + path, timeout=30)

        assert reply.status_code == 401
        assert reply.json()["errors"][0]["title"] == "Unauthorized"


@pytest.mark.parametrize(
    ("token", "roles", "status"),
    [
        ("admin", None, 200),
        ("admin:project", None, 200),
        ("user:project", None, 403),
        ("user", "service", 200),
        ("user", "member, admin", 200),
        ("admin", "member", 403),
    ],
)
def test_only_the_administrator_and_services_are_permitted(
    http: Http, token: str, roles: str | None, status: int
) -> None:
    headers = {} if roles is None else {"X-Roles": roles}

    assert http.get("/resource_providers", token=token, headers=headers).status == status


def test_a_reader_sees_only_the_usages_of_its_own_project(http: Http) -> None:
    reader = {"X-Roles": "reader"}

    for token, headers in (("user:mine", reader), ("user", {**reader, "X-Project-Id": "mine"})):
        assert http.get("/usages?project_id=mine", token=token, headers=headers).status == 200
        assert http.get("/usages?project_id=yours", token=token, headers=headers).status == 403
    assert http.get("/usages?project_id=mine", token="user:mine").status == 403


def test_a_system_scoped_token_is_refused(http: Http) -> None:
    assert http.get("/resource_providers", headers={"OpenStack-System-Scope": "all"}).status == 403


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/", "GET"),
        ("PUT", "/resource_providers", "GET, POST"),
        ("PATCH", NOTHING, "DELETE, GET, PUT"),
        ("POST", f"{NOTHING}/usages", "GET"),
        ("HEAD", "/traits", "GET"),
        ("OPTIONS", "/resource_classes", "GET, POST"),
    ],
)
def test_an_unsupported_method_is_405_with_the_allowed_ones(http: Http, method: str, path: str, allowed: str) -> None:
    reply = http.call(method, path)

    assert reply.status == 405
    assert reply.headers["Allow"] == allowed


@pytest.mark.parametrize("path", ["/nowhere", f"{NOTHING}/nowhere", f"{NOTHING}/usages/VCPU"])
def test_an_unknown_path_is_404(http: Http, path: str) -> None:
    assert http.get(path).error["title"] == "Not Found"


def test_another_media_type_is_415_and_an_empty_one_is_400(http: Http) -> None:
    sent: dict[str, Any] = {"data": b'{"name": "a"}'}

    assert http.post("/resource_providers", headers={"Content-Type": "text/plain"}, **sent).status == 415
    assert http.post("/resource_providers", headers={"Content-Type": ""}, **sent).status == 400
    assert http.post("/resource_providers").status == 415
    charset = {"Content-Type": "application/json; charset=utf-8"}
    assert http.post("/resource_providers", headers=charset, data=f'{{"name": "{ids.fresh()}"}}').status == 200


@pytest.mark.parametrize("accepted", ["text/plain", "application/xml, text/css"])
def test_a_media_type_that_cannot_be_served_is_406(http: Http, accepted: str) -> None:
    reply = http.get("/resource_providers", headers={"Accept": accepted})

    assert (reply.status, reply.headers["Content-Type"]) == (406, "text/plain; charset=UTF-8")
    assert "Only application/json is provided" in reply.text
    assert http.get("/resource_providers", headers={"Accept": f"{accepted}, */*;q=0.1"}).status == 200


@pytest.mark.parametrize(
    "accepted",
    ["APPLICATION/JSON", "application/json,", ", text/css ,,Application/*;q=0.5", "json", "application/json;q=2"],
)
def test_an_accept_header_is_read_in_any_form_and_one_that_cannot_be_read_accepts_anything(
    http: Http, accepted: str
) -> None:
    assert http.get("/resource_providers", headers={"Accept": accepted}).status == 200
    refused = http.get("/resource_providers?uuid=none", headers={"Accept": accepted})
    assert (refused.status, refused.headers["Content-Type"]) == (400, "application/json")


def test_the_root_and_an_answer_without_a_body_ignore_the_accept_header(http: Http) -> None:
    root = http.get("/", headers={"Accept": "text/html"})
    assert (root.status, root.headers["Content-Type"]) == (200, "application/json")
    assert http.get("/traits/HW_CPU_X86_AVX2", headers={"Accept": "text/html"}).status == 204


def test_an_error_is_html_for_a_client_that_prefers_it(http: Http) -> None:
    name = "<b>&"
    reply = http.put(f"/traits/{name}", headers={"Accept": "text/html"})

    assert (reply.status, reply.headers["Content-Type"]) == (400, "text/html; charset=UTF-8")
    assert "The trait is invalid." in reply.text
    assert name not in reply.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"name": 1}',
        b"[]",
        b"null",
        b'"name"',
        b'{"name": "\xff"}',
        b'{"name": "a", "x": 1}',
        b'{"name": "\\ud800"}',
        b'{"name": NaN}',
        b"[" * 100_000,
    ],
)
def test_an_invalid_body_is_400(http: Http, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}

    assert http.post("/resource_providers", data=body, headers=headers).status == 400


def test_a_body_that_is_nested_about_as_deeply_as_can_be_decoded_is_400(http: Http) -> None:
    # At some of these depths, the body can be decoded, but not validated.
    for depth in range(960, 1000):
        body = f'{{"name": {"[" * depth}{"]" * depth}}}'
        reply = http.post("/resource_providers", data=body, headers={"Content-Type": "application/json"})
        assert reply.status == 400, (depth, reply)


@pytest.mark.parametrize("size", [16 * 2**20 + 1, 17 * 2**20 + 1000])
def test_a_body_that_is_too_long_is_413_and_the_limit_is_named(http: Http, size: int) -> None:
    body = b'{"name": "' + b"a" * size + b'"}'

    reply = http.post("/resource_providers", data=body, headers={"Content-Type": "application/json"})

    assert (reply.status, reply.error["detail"]) == (413, "A body has at most 16777216 bytes.")


def test_a_chunked_body_is_read(http: Http) -> None:
    body = iter([b'{"name": ', f'"{ids.fresh()}"'.encode(), b"}"])

    assert http.post("/resource_providers", data=body, headers={"Content-Type": "application/json"}).status == 200


@pytest.mark.parametrize("query", ["%FF", "a%ED%A0%80b", "x%C3"])
def test_a_query_that_is_not_text_in_utf_8_is_400(http: Http, query: str) -> None:
    for path in ("/resource_providers?name=", "/traits?name=startswith:", "/usages?project_id=", "/traits?"):
        reply = http.get(f"{path}{query}")
        assert reply.status == 400
        assert "Invalid query string parameters: 'utf-8' codec can't decode" in reply.error["detail"]
    assert http.get(f"/resource_classes?{query}").status == 200


@pytest.mark.parametrize("text", ["%FF", "%00", "%E2%98%83", "%F0%9F%9A%A2", "%2F", "'", "a%0A", "+", "%25"])
def test_any_text_in_a_path_or_query_gets_a_proper_answer(http: Http, text: str) -> None:
    provider = f"/resource_providers/{text}"

    for path in (provider, f"{provider}/usages", f"/traits/{text}", f"/resource_classes/{text}"):
        assert http.get(path).status == 404
    assert http.put(f"/traits/{text}").status in (400, 404)
    assert http.delete(f"/resource_providers/{http.provider()}/inventories/{text}").status == 404
    is_text = text != "%FF"
    assert http.get(f"/resource_providers?name={text}").status == (200 if is_text else 400)
    for query in ("uuid", "resources", "member_of", "required", "in_tree"):
        assert http.get(f"/resource_providers?{query}={text}").status == 400
    if is_text:
        assert http.get(f"/traits?name=startswith:{text}").body["traits"] == []


@pytest.mark.parametrize("name", ["\u2603", "\U0001f6a2", "\x00", "a\nb", "'; --", " ", "\u00e9"])
def test_any_text_may_be_the_name_of_a_provider(http: Http, name: str) -> None:
    name = f"{name} {ids.fresh()}"
    uuid = http.provider(name)

    assert http.get(f"/resource_providers/{uuid}").body["name"] == name


def test_a_number_that_is_too_large_is_400(http: Http) -> None:
    uuid = http.provider()
    for number in ("9" * 30, "1e400", "1e30"):
        body = f'{{"resource_provider_generation": {number}, "inventories": {{}}}}'
        reply = http.put(
            f"/resource_providers/{uuid}/inventories", data=body, headers={"Content-Type": "application/json"}
        )

        assert reply.status == 400


def test_an_unknown_query_parameter_is_400(http: Http) -> None:
    assert http.get("/resource_providers?colour=blue").status == 400
    assert http.get("/traits?colour=blue").status == 400
    assert http.get("/resource_providers?name=a&uuid=a").status == 400


@pytest.mark.parametrize("path", ["/allocations/", "/traits/", "/resource_providers/"])
def test_a_path_whose_name_is_empty_is_404(http: Http, path: str) -> None:
    assert http.get(path).status == 404
    assert http.post(path).status == 404


def test_an_operation_that_takes_no_parameters_ignores_them(http: Http) -> None:
    assert http.get("/resource_classes?colour=blue").status == 200
    assert http.get(f"/resource_providers/{http.provider()}?colour=blue").status == 200


@pytest.mark.parametrize(
    ("method", "path", "since", "below"),
    [
        ("GET", f"{NOTHING}/aggregates", "1.1", 404),
        ("PUT", f"{NOTHING}/aggregates", "1.1", 404),
        ("GET", "/resource_classes", "1.2", 404),
        ("POST", "/resource_classes", "1.2", 404),
        ("GET", "/resource_classes/VCPU", "1.2", 404),
        ("PUT", "/resource_classes/CUSTOM_A", "1.2", 404),
        ("DELETE", "/resource_classes/CUSTOM_A", "1.2", 404),
        ("DELETE", f"{NOTHING}/inventories", "1.5", 405),
        ("GET", "/traits", "1.6", 404),
        ("GET", "/traits/CUSTOM_A", "1.6", 404),
        ("PUT", "/traits/CUSTOM_A", "1.6", 404),
        ("DELETE", "/traits/CUSTOM_A", "1.6", 404),
        ("GET", f"{NOTHING}/traits", "1.6", 404),
        ("PUT", f"{NOTHING}/traits", "1.6", 404),
        ("DELETE", f"{NOTHING}/traits", "1.6", 404),
        ("GET", "/usages?project_id=project", "1.9", 404),
        ("GET", "/allocation_candidates?resources=VCPU:1", "1.10", 404),
        ("POST", "/allocations", "1.13", 404),
        ("POST", "/reshaper", "1.30", 404),
    ],
)
def test_an_operation_does_not_exist_before_its_version(
    http: Http, method: str, path: str, since: str, below: int
) -> None:
    before = f"1.{int(since.partition('.')[2]) - 1}"
    reply = http.call(method, path, {}, before)

    assert reply.status == below
    assert since in reply.error["detail"]
    assert since not in str(http.call(method, path, {}, since).body)
