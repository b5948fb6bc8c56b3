"""``/allocation_candidates``: sets of providers that can serve a request."""

import re
import time
from collections.abc import Collection, Mapping
from random import SystemRandom
from typing import Any, Literal

from moorage import errors
from moorage.model import AllocationCandidates, AllocationRequest, ProviderSummary, ResourceRequest
from placement_store.candidates import listing
from placement_store.http import query, refusals
from placement_store.http.errors import ErrorStatuses
from placement_store.http.operations import Call, DeclaredOperation, OperationResult, Resource
from placement_store.http.query import Names, Query
from placement_store.http.refusals import UNDEFINED, HTTPRefusal
from placement_store.http.schemas import TEXT, Schema, Schemas, document, with_more
from placement_store.http.versions import Version, v

_LIMIT: Schema = {"type": "string", "pattern": r"^[1-9][0-9]*\Z"}
_POLICY: Schema = {"enum": ["none", "isolate"]}
_NUMBERED, _NAMED = "([1-9][0-9]*)?", "([a-zA-Z0-9_-]{1,64})?"


def _grouped(schema: Schema, suffix: str, *names: str) -> dict[str, Any]:
    return {**schema, "patternProperties": {rf"^{name}{suffix}\Z": TEXT for name in names}}


_LIST_1_10 = document({"resources": TEXT}, required=("resources",))
_LIST_1_16 = with_more(_LIST_1_10, {"limit": _LIMIT})
_LIST_1_17 = with_more(_LIST_1_16, {"required": TEXT})
_LIST_1_21 = with_more(_LIST_1_17, {"member_of": TEXT})
_WIDE_1_25 = document({"limit": _LIMIT, "group_policy": _POLICY})
_WIDE_1_35 = with_more(_WIDE_1_25, {"root_required": TEXT})
_WIDE_1_36 = with_more(_WIDE_1_35, {"same_subtree": TEXT})
_GROUP_1_31 = ("resources", "required", "member_of", "in_tree")

#: The parameters of ``GET /allocation_candidates``.
_LIST_SCHEMAS = Schemas(
    {
        "1.10": _LIST_1_10,
        "1.16": _LIST_1_16,
        "1.17": _LIST_1_17,
        "1.21": _LIST_1_21,
        "1.25": _grouped(_WIDE_1_25, _NUMBERED, "resources", "required", "member_of"),
        "1.31": _grouped(_WIDE_1_25, _NUMBERED, *_GROUP_1_31),
        "1.33": _grouped(_WIDE_1_25, _NAMED, *_GROUP_1_31),
        "1.35": _grouped(_WIDE_1_35, _NAMED, *_GROUP_1_31),
        "1.36": _grouped(_WIDE_1_36, _NAMED, *_GROUP_1_31),
    }
)

_BY_PROVIDER_SINCE, _TRAITS_SINCE, _ALL_CLASSES_SINCE = v("1.12"), v("1.17"), v("1.27")
_TREES_SINCE, _MAPPINGS_SINCE = v("1.29"), v("1.34")
# An unknown class or trait is a fault of the request; so is a request that is too hard to search for.
_BAD_QUERY: ErrorStatuses = {errors.NotFound: (400, UNDEFINED), errors.SearchBoundReached: (400, UNDEFINED)}


class CandidatesResource(Resource):
    """Allocation candidates: nothing of them is reserved."""

    path = "/allocation_candidates"

    @DeclaredOperation(
        "placement:allocation_candidates:list", since=v("1.10"), query=_LIST_SCHEMAS, error_status=_BAD_QUERY
    )
    def on_get(self, call: Call) -> OperationResult:
        """List allocation candidates, at most ``limit``, with summaries of their providers."""
        request = _request_of(call.query, call.version)
        try:
            found = self._found(request, self._limit(call.query.last("limit")), call.version)
        except errors.InvalidRequest as fault:
            raise _query_refusal(fault, call.version) from fault
        if call.version < _TREES_SINCE:
            found = _without_trees(found)
        body = {
            "allocation_requests": [_request(one, call.version) for one in found.allocation_requests],
            "provider_summaries": _summaries(found.provider_summaries, request, call.version),
        }
        return OperationResult(body=body, modified=time.time())

    def _limit(self, sent: str | None) -> int:
        at_most: int = self.settings.max_allocation_candidates
        # A number with more digits than the maximum is above it; Python refuses to parse thousands of digits.
        return at_most if sent is None or len(sent) > len(str(at_most)) else min(int(sent), at_most)

    def _found(self, request: ResourceRequest, limit: int, version: Version) -> AllocationCandidates:
        rng = SystemRandom() if self.settings.randomize_allocation_candidates else None
        return listing.list_candidates(
            self.store.read,
            self.store.classes,
            request,
            limit,
            one_of_each_tree=version < _TREES_SINCE,
            rng=rng,
        )


def _without_trees(found: AllocationCandidates) -> AllocationCandidates:
    """Return the candidates as before nested providers: only with summaries of providers that they allocate from."""
    used = {uuid for one in found.allocation_requests for uuid in one.allocations}
    kept = {uuid: summary for uuid, summary in found.provider_summaries.items() if uuid in used}
    return AllocationCandidates(allocation_requests=found.allocation_requests, provider_summaries=kept)


def _request(one: AllocationRequest, version: Version) -> dict[str, Any]:
    if version < _BY_PROVIDER_SINCE:
        parts = one.allocations.items()
        return {
            "allocations": [{"resource_provider": {"uuid": uuid}, "resources": part.resources} for uuid, part in parts]
        }
    shown: dict[str, Any] = {
        "allocations": {uuid: {"resources": part.resources} for uuid, part in one.allocations.items()}
    }
    if version >= _MAPPINGS_SINCE:
        shown["mappings"] = one.mappings
    return shown


def _summaries(
    summaries: Mapping[str, ProviderSummary], request: ResourceRequest, version: Version
) -> dict[str, dict[str, Any]]:
    asked = {name for group in request.groups.values() for name in group.resources}
    return {
        uuid: _summary(summary, None if version >= _ALL_CLASSES_SINCE else asked, version)
        for uuid, summary in summaries.items()
    }


def _summary(summary: ProviderSummary, classes: Collection[str] | None, version: Version) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "resources": {
            name: {"capacity": int(capacity), "used": summary.used[name]}
            for name, capacity in summary.capacity.items()
            if classes is None or name in classes
        }
    }
    if version >= _TRAITS_SINCE:
        shown["traits"] = summary.traits
    if version >= _TREES_SINCE:
        shown["parent_provider_uuid"] = summary.parent_provider_uuid
        shown["root_provider_uuid"] = summary.root_provider_uuid
    return shown


# --- The query --------------------------------------------------------------------------------------------------------


_GROUP_KEY = re.compile(r"(resources|required|member_of|in_tree)([A-Za-z0-9_-]{0,64})")
_RESOURCELESS_GROUPS_SINCE = v("1.36")
_POLICIES: Mapping[str | None, Literal["none", "isolate"]] = {"none": "none", "isolate": "isolate"}


def _request_of(parameters: Query, version: Version) -> ResourceRequest:
    """Parse a query that is valid under its schema into a request.

    :raises HTTPRefusal: 400, a parameter is malformed or repeated.
    """
    # The groups in the order of their first parameters.
    suffixes = dict.fromkeys(match[2] for name in parameters.names if (match := _GROUP_KEY.fullmatch(name)))
    groups = {suffix: query.group(parameters, suffix, version) for suffix in suffixes}
    if version < _RESOURCELESS_GROUPS_SINCE:
        for suffix, group in groups.items():
            if not group.resources:
                raise HTTPRefusal(400, f"The request group {suffix!r} asks for no resources.")
    root_required, root_forbidden = _root_traits(parameters, version)
    return ResourceRequest(
        groups=groups,
        group_policy=_POLICIES.get(parameters.last("group_policy")),
        same_subtree=tuple(tuple(dict.fromkeys(text.split(","))) for text in parameters.all("same_subtree")),
        root_required=root_required,
        root_forbidden=root_forbidden,
    )


def _query_refusal(fault: errors.InvalidRequest, version: Version) -> HTTPRefusal:
    """Translate the store's refusal of such a request: the path of the fault decides on the code."""
    place = fault.path.removeprefix("$.request.")
    code = refusals.UNDEFINED
    if place == "groups":
        code = refusals.QUERY_MISSING_VALUE
    elif place.startswith(("same_subtree[", "root_forbidden")) or place.endswith("].resources"):
        code = refusals.QUERY_BAD_VALUE
    if version < _RESOURCELESS_GROUPS_SINCE and place == "groups":
        code = refusals.UNDEFINED
    return HTTPRefusal(400, f"Invalid query string: {fault.reason}, at {place}", code)


def _root_traits(parameters: Query, version: Version) -> tuple[Names, Names]:
    texts = parameters.all("root_required")
    if len(texts) > 1:
        raise HTTPRefusal(
            400, "Invalid query string parameter root_required: it may be sent once", refusals.QUERY_DUPLICATE_KEY
        )
    required, any_of, forbidden = query.traits("root_required", texts, version)
    if any_of:
        raise HTTPRefusal(
            400, "Invalid query string parameter root_required: `in:` is not for it", refusals.QUERY_BAD_VALUE
        )
    return required, forbidden
