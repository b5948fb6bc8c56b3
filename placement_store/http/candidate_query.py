"""Parse the query for allocation candidates into the groups of a request."""

import re
from collections.abc import Mapping
from typing import Literal

from moorage import errors
from moorage.model import ResourceGroup, ResourceRequest
from placement_store.http import query, refusals
from placement_store.http.query import Query, RequestedTraits
from placement_store.http.refusals import HTTPRefusal
from placement_store.http.versions import Version, v

_GROUP_KEY = re.compile(r"(resources|required|member_of|in_tree)([A-Za-z0-9_-]{0,64})")
_RESOURCELESS_GROUPS_SINCE = v("1.36")
_POLICIES: Mapping[str | None, Literal["none", "isolate"]] = {"none": "none", "isolate": "isolate"}


def request_of(parameters: Query, version: Version) -> ResourceRequest:
    """Parse a query that is valid under its schema into a request.

    :raises HTTPRefusal: 400, a parameter is malformed or repeated.
    """
    groups = {suffix: _group(parameters, suffix, version) for suffix in _suffixes(parameters)}
    if version < _RESOURCELESS_GROUPS_SINCE:
        for suffix, group in groups.items():
            if not group.resources:
                raise HTTPRefusal(400, f"The request group {suffix!r} asks for no resources.")
    root = _root_traits(parameters, version)
    return ResourceRequest(
        groups=groups,
        group_policy=_POLICIES.get(parameters.last("group_policy")),
        same_subtree=tuple(_subtree(text) for text in parameters.all("same_subtree")),
        root_required=root.required,
        root_forbidden=root.forbidden,
    )


def query_refusal(fault: errors.InvalidRequest, version: Version) -> HTTPRefusal:
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


def _suffixes(parameters: Query) -> list[str]:
    """Return the suffixes of all groups, in the order of their first parameters."""
    found = [match[2] for name in parameters.names if (match := _GROUP_KEY.fullmatch(name))]
    return list(dict.fromkeys(found))


def _group(parameters: Query, suffix: str, version: Version) -> ResourceGroup:
    amounts, tree = parameters.last(f"resources{suffix}"), parameters.last(f"in_tree{suffix}")
    traits = query.traits(f"required{suffix}", parameters.all(f"required{suffix}"), version)
    aggregates = query.aggregates(f"member_of{suffix}", parameters.all(f"member_of{suffix}"), version)
    return ResourceGroup(
        resources={} if amounts is None else query.resources(f"resources{suffix}", amounts),
        required=traits.required,
        any_of=traits.any_of,
        forbidden=traits.forbidden,
        member_of=aggregates.member_of,
        not_member_of=aggregates.not_member_of,
        in_tree=None if tree is None else query.uuid_of(f"in_tree{suffix}", tree),
    )


def _root_traits(parameters: Query, version: Version) -> RequestedTraits:
    texts = parameters.all("root_required")
    if len(texts) > 1:
        raise HTTPRefusal(
            400, "Invalid query string parameter root_required: it may be sent once", refusals.QUERY_DUPLICATE_KEY
        )
    found = query.traits("root_required", texts, version)
    if found.any_of:
        raise HTTPRefusal(
            400, "Invalid query string parameter root_required: `in:` is not for it", refusals.QUERY_BAD_VALUE
        )
    return found


def _subtree(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.split(",")))
