"""``/allocation_candidates``: sets of providers that can serve a request."""

import re
import time
from collections.abc import Collection, Mapping
from random import SystemRandom
from typing import Any, Literal

from moorage import errors
from moorage.model import (
    MOST_GROUPS,
    UNSUFFIXED,
    AllocationCandidates,
    AllocationRequest,
    ProviderSummary,
    ResourceGroup,
    ResourceRequest,
)
from placement_store.candidates import listing
from placement_store.http import query, refusals
from placement_store.http.errors import ErrorAnswers
from placement_store.http.operations import Call, DeclaredOperation, OperationResult, Resource
from placement_store.http.phrases import Phrase, before
from placement_store.http.query import Names, Query
from placement_store.http.refusals import ErrorAnswer, HTTPRefusal
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
# An unknown class or trait is a fault of the request, and so is a search that exceeds its bound.
_BAD_QUERY: ErrorAnswers = {
    errors.ResourceClassNotFound: ErrorAnswer(400, phrases=(Phrase.BAD_CLASS, Phrase.NO_CLASS)),
    errors.TraitNotFound: ErrorAnswer(400, phrases=(Phrase.NO_TRAIT,)),
    errors.SearchBoundReached: ErrorAnswer(400),
}


class CandidatesResource(Resource):
    """Allocation candidates; listing them reserves nothing."""

    path = "/allocation_candidates"

    @DeclaredOperation("placement:allocation_candidates:list", since=v("1.10"), query=_LIST_SCHEMAS, answers=_BAD_QUERY)
    def on_get(self, call: Call) -> OperationResult:
        """List allocation candidates, at most ``limit``, with summaries of their providers."""
        request = _request_of(call.query, call.version)
        found = listing.list_candidates(
            self.store,
            request,
            self._limit(call.query),
            one_of_each_tree=call.version < _TREES_SINCE,
            rng=SystemRandom() if self.settings.randomize_allocation_candidates else None,
            folds=self.settings.fold_allocation_candidates,
        )
        body = {
            "allocation_requests": [_request(one, call.version) for one in found.allocation_requests],
            "provider_summaries": _summaries(found, request, call.version),
        }
        return OperationResult(body=body, modified=time.time())

    def _limit(self, parameters: Query) -> int:
        at_most: int = self.settings.max_allocation_candidates
        texts = parameters.get("limit", ())
        for sent in texts:
            if not _LIMIT_FORM.fullmatch(sent):
                raise HTTPRefusal(400, before("limit is a number.", [Phrase.INVALID_QUERY]))
        # A number with more digits than the maximum is above it; Python refuses to parse thousands of digits.
        return min(int(texts[0]), at_most) if texts and len(texts[0]) <= len(str(at_most)) else at_most


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


def _summaries(found: AllocationCandidates, request: ResourceRequest, version: Version) -> dict[str, dict[str, Any]]:
    """Represent the providers; before nested providers, only those that candidates allocate from."""
    summaries, classes = found.provider_summaries, None
    if version < _ALL_CLASSES_SINCE:
        classes = {name for group in request.groups.values() for name in group.resources}
    if version < _TREES_SINCE:
        used = {uuid for one in found.allocation_requests for uuid in one.allocations}
        summaries = {uuid: summary for uuid, summary in summaries.items() if uuid in used}
    return {uuid: _summary(summary, classes, version) for uuid, summary in summaries.items()}


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


_LIMIT_FORM = re.compile("[1-9][0-9]*")
_GROUP_KEY = re.compile(r"(resources|required|member_of|in_tree)([A-Za-z0-9_-]{0,64})")
_RESOURCELESS_GROUPS_SINCE, _FORBIDDEN_TRAITS_SINCE, _NO_ANY_TRAITS = v("1.36"), v("1.22"), v("1.38")
_POLICIES: Mapping[str, Literal["none", "isolate"]] = {"none": "none", "isolate": "isolate"}


def _request_of(parameters: Query, version: Version) -> ResourceRequest:
    """Parse a query that is valid under its schema into a request.

    The order of the checks decides which fault is reported, and its code.

    :raises HTTPRefusal: 400, a parameter is malformed or repeated, or the request contradicts itself.
    """
    root_required, root_forbidden = _root_traits(parameters, version)
    same_subtree = tuple(_suffixes(text) for text in parameters.get("same_subtree", ()))
    # The groups in the order of their first parameters.
    suffixes = dict.fromkeys(match[2] for name in parameters if (match := _GROUP_KEY.fullmatch(name)))
    # As over RPC: each candidate names a provider for each group.
    for what, sent in (("groups", suffixes), ("values of same_subtree", same_subtree)):
        if len(sent) > MOST_GROUPS:
            raise HTTPRefusal(400, before(f"There are more than {MOST_GROUPS} {what}.", [Phrase.INVALID_QUERY]))
    groups = {suffix: query.group(parameters, suffix, version) for suffix in suffixes}
    if version < _RESOURCELESS_GROUPS_SINCE:
        _require_resources(groups)
    else:
        _require_subtrees(groups, {suffix for one in same_subtree for suffix in one})
    if version >= _FORBIDDEN_TRAITS_SINCE:
        _refuse_contradictions(groups)
    policy = next(iter(parameters.get("group_policy", ())), None)
    if policy is None and len(groups.keys() - {UNSUFFIXED}) > 1:
        raise HTTPRefusal(400, Phrase.NEEDS_GROUP_POLICY.about())
    return ResourceRequest(
        groups=groups,
        # The schema has validated only the last value, but the first one counts.
        group_policy=None if policy is None else _POLICIES.get(policy, "none"),
        same_subtree=same_subtree,
        root_required=root_required,
        root_forbidden=root_forbidden,
    )


def _root_traits(parameters: Query, version: Version) -> tuple[Names, Names]:
    texts = parameters.get("root_required", ())
    if len(texts) > 1:
        raise HTTPRefusal(400, Phrase.ONE_ROOT_REQUIRED.about(), refusals.QUERY_DUPLICATE_KEY)
    # No version supports `in:` for the root.
    required, _, forbidden = query.traits(texts, min(version, _NO_ANY_TRAITS))
    query.check_number("root_required", required)
    if both := sorted(set(required).intersection(forbidden)):
        raise HTTPRefusal(400, Phrase.ROOT_CONFLICT.about(names=", ".join(both)), refusals.QUERY_BAD_VALUE)
    return required, forbidden


def _suffixes(text: str) -> Names:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if UNSUFFIXED in found:
        raise HTTPRefusal(400, Phrase.EMPTY_SUFFIX.about(), refusals.QUERY_BAD_VALUE)
    return found


def _require_resources(groups: Mapping[str, ResourceGroup]) -> None:
    """Check that each group requests resources, as before 1.36."""
    empty = {suffix: group for suffix, group in groups.items() if not group.resources}
    orphans = {
        Phrase.ORPHANED_TRAITS: [f"required{suffix}" for suffix, one in empty.items() if one.required or one.any_of],
        Phrase.ORPHANED_MEMBER_OF: [
            f"member_of{suffix}" for suffix, one in empty.items() if one.member_of or one.not_member_of
        ],
    }
    for phrase, names in orphans.items():
        if names:
            raise HTTPRefusal(400, phrase.about(names=", ".join(names)))
    if empty:
        raise HTTPRefusal(400, Phrase.GROUP_WITHOUT_RESOURCES.about())
    if not groups:
        raise HTTPRefusal(400, Phrase.NO_GROUP.about())


def _require_subtrees(groups: Mapping[str, ResourceGroup], in_subtrees: Collection[str]) -> None:
    """Check that each group without resources is in a subtree, and that subtrees name only existing groups."""
    empty = [suffix for suffix, group in groups.items() if not group.resources]
    if len(empty) == len(groups):
        raise HTTPRefusal(400, Phrase.NOTHING_ASKED.about(), refusals.QUERY_MISSING_VALUE)
    for phrase, bad in {
        Phrase.NOTHING_OF_SUFFIX: [suffix for suffix in empty if suffix not in in_subtrees],
        Phrase.UNKNOWN_SUFFIX: sorted(suffix for suffix in in_subtrees if suffix not in groups),
    }.items():
        if bad:
            raise HTTPRefusal(400, f"{phrase.about()} {bad}", refusals.QUERY_BAD_VALUE)


def _refuse_contradictions(groups: Mapping[str, ResourceGroup]) -> None:
    conflicts = sorted(
        f"required{suffix}: ({', '.join(sorted(wanted))})"
        for suffix, group in groups.items()
        for wanted in (*((name,) for name in group.required), *group.any_of)
        if set(wanted) <= set(group.forbidden)
    )
    if conflicts:
        raise HTTPRefusal(400, Phrase.TRAIT_CONFLICT.about(names=", ".join(conflicts)))
