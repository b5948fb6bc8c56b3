"""Sequences of requests, valid and invalid, in every microversion: drawn by Hypothesis."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from support.http.differential.operations import OPERATIONS
from support.http.differential.world import (
    CLASSES,
    CONSUMERS,
    PROJECTS,
    PROVIDERS,
    Draw,
    Generation,
    PartPicker,
    Request,
)

# --- Faults of form -------------------------------------------------------------------------------------------------

_BYTES = [b"", b"{", b"[]", b"null", b'"text"', b"\xff", b"{}"]
_HEADERS = [
    {"Content-Type": "text/plain"},
    {"Content-Type": "application/json; charset=utf-8"},
    {"Accept": "text/html"},
    {"Accept": "text/plain"},
    {"Accept": "application/json, text/html;q=0.5"},
    {"Accept": ""},
    {"Accept": "*/*"},
    {"Accept": "text/html, application/json"},
    {"X-Auth-Token": ""},
    {"X-Auth-Token": "someone", "X-Roles": "member"},
]
_VERSIONS = [None, "1.40", "0.9", "2.0", "1", "latest", "x.y", "1.2.3", ""]
_VALUES_OF_NO_KIND = [None, "", "text", -1, 0, 1.0, 1.5, 2**31, 2**63, True, [], {}, ["x"], {"x": 1}]


def _spoilt_body(pick: PartPicker, body: Any) -> Any:
    """Change one place of a body: add or remove a key, or change the type of a value."""
    if isinstance(body, dict) and body and not pick.rarely(5):
        key = pick.one(sorted(body))
        how = pick.one(["deeper", "deeper", "remove", "replace", "add", "rename"])
        spoilt = dict(body)
        if how == "deeper":
            spoilt[key] = _spoilt_body(pick, body[key])
        elif how == "add":
            spoilt["unknown"] = 1
        elif how == "rename":
            spoilt[pick.one(["not-a-uuid", "bad class", "A" * 256])] = spoilt.pop(key)
        elif how == "replace":
            spoilt[key] = pick.one(_VALUES_OF_NO_KIND)
        else:
            del spoilt[key]
        return spoilt
    if isinstance(body, list) and body and pick.draw(st.booleans()):
        return [*body[:-1], _spoilt_body(pick, body[-1])]
    return pick.one(_VALUES_OF_NO_KIND)


def _spoilt(pick: PartPicker, request: Request) -> Request:
    how = pick.one(["body", "body", "body", "bytes", "header", "version", "path", "method", "query"])
    if how == "body" and request.body is not None:
        return replace(request, body=_spoilt_body(pick, request.body))
    if how == "bytes":
        return replace(request, body=pick.one(_BYTES))
    if how == "header":
        return replace(request, headers=pick.one(_HEADERS))
    if how == "version":
        return replace(request, version=pick.one(_VERSIONS))
    if how == "path":
        return replace(request, path=pick.one(["/", "/none", request.path + "/", request.path.replace("-", "")]))
    if how == "method":
        return replace(request, method=pick.one(["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "HEAD"]))
    return replace(request, query=(*request.query, ("unknown", "1")))


@st.composite
def requests(draw: Draw) -> Request:
    """One request."""
    pick = PartPicker(draw)
    request = pick.one(OPERATIONS)(pick)
    return _spoilt(pick, request) if pick.rarely(8) else request


@st.composite
def sequences(draw: Draw, length: int) -> list[Request]:
    """Return requests that create a small tree, each of which may be left out; then arbitrary requests."""
    pick = PartPicker(draw)
    made: list[Request] = [Request("PUT", "/resource_classes/CUSTOM_A"), Request("PUT", "/traits/CUSTOM_T")]
    for number, uuid in enumerate(PROVIDERS[: draw(st.integers(0, 4))]):
        parent = draw(st.sampled_from([None, *PROVIDERS[:number]]))
        made.append(
            Request(
                "POST",
                "/resource_providers",
                body={"name": f"name{number}", "uuid": uuid, "parent_provider_uuid": parent},
            )
        )
        held = {name: {"total": 8} for name in pick.some(CLASSES, 1)}
        body = {"resource_provider_generation": Generation(uuid), "inventories": held}
        made.append(Request("PUT", f"/resource_providers/{uuid}/inventories", body=body))
    more: list[Request] = draw(st.lists(requests(), min_size=length, max_size=length))
    return made + more


#: Requests that read the whole content of a store after such sequences.
EVERYTHING = [
    *(Request("GET", f"/resource_providers/{u}{part}") for u in PROVIDERS
      for part in ("", "/inventories", "/usages", "/aggregates", "/traits", "/allocations")),
    *(Request("GET", f"/allocations/{uuid}") for uuid in CONSUMERS),
    *(Request("GET", "/usages", query=(("project_id", project),)) for project in PROJECTS),
    Request("GET", "/resource_providers"),
    *(Request("GET", "/allocation_candidates", query=(("resources", f"{name}:1"),)) for name in CLASSES),
]  # fmt: skip
