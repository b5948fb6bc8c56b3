"""Parse the query for allocation candidates into the groups of a request."""

import re
from collections.abc import Mapping
from typing import Literal

from moorage import errors
from moorage.model import ResourceRequest
from placement_store.http import query, refusals
from placement_store.http.query import Names, Query
from placement_store.http.refusals import HTTPRefusal
from placement_store.http.versions import Version, v

_GROUP_KEY = re.compile(r"(resources|required|member_of|in_tree)([A-Za-z0-9_-]{0,64})")
_RESOURCELESS_GROUPS_SINCE = v("1.36")
_POLICIES: Mapping[str | None, Literal["none", "isolate"]] = {"none": "none", "isolate": "isolate"}


def request_of(parameters: Query, version: Version) -> ResourceRequest:
    """Parse a query that is valid under its schema into a request.

    :raises HTTPRefusal: 400, a parameter is malformed or repeated.
    """
    groups = {suffix: query.group(parameters, suffix, version) for suffix in _suffixes(parameters)}
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
