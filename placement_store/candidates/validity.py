"""Validate a request for candidates, independently of any provider."""

from collections.abc import Iterator, Mapping

from moorage import errors
from moorage.model import UNSUFFIXED, ResourceGroup, ResourceRequest


def check(request: ResourceRequest, path: str = "$") -> None:
    """Refuse a request that asks for nothing, contradicts itself, or lacks a parameter that it needs.

    :param path: the path of the request in the message.
    :raises InvalidRequest: naming the path of the first fault.
    """
    for place, reason in _faults(request):
        raise errors.InvalidRequest(path=f"{path}.{place}", reason=reason)


def _faults(request: ResourceRequest) -> Iterator[tuple[str, str]]:
    if not any(group.resources for group in request.groups.values()):
        yield "groups", "no group asks for any resources"
    if len(request.groups.keys() - {UNSUFFIXED}) > 1 and request.group_policy is None:
        yield "group_policy", "must be said where there is more than one suffixed group"
    yield from _subtree_faults(request)
    yield from _apart_faults(request)
    for suffix, group in request.groups.items():
        yield from _group_faults(f"groups[{suffix!r}]", group)
    if both := _common(request.root_required, request.root_forbidden):
        yield "root_forbidden", f"{both} is required as well"
    for number, wanted in enumerate(request.root_member_of):
        if set(wanted) <= set(request.root_not_member_of):
            yield f"root_member_of[{number}]", "all of these aggregates are forbidden"


def _subtree_faults(request: ResourceRequest) -> Iterator[tuple[str, str]]:
    named: set[str] = set()
    for number, suffixes in enumerate(request.same_subtree):
        named.update(suffixes)
        for suffix in suffixes:
            if suffix == UNSUFFIXED:
                yield f"same_subtree[{number}]", "the unsuffixed group has no one provider that a subtree could hold"
            if suffix not in request.groups:
                yield f"same_subtree[{number}]", f"there is no group {suffix!r}"
    yield from _resourceless_faults(request.groups, named)


def _apart_faults(request: ResourceRequest) -> Iterator[tuple[str, str]]:
    for number, suffixes in enumerate(request.apart):
        for suffix in suffixes:
            if suffix == UNSUFFIXED:
                yield f"apart[{number}]", "the unsuffixed group has no one provider that others could be kept from"
            if suffix not in request.groups:
                yield f"apart[{number}]", f"there is no group {suffix!r}"


def _resourceless_faults(groups: Mapping[str, ResourceGroup], in_subtrees: set[str]) -> Iterator[tuple[str, str]]:
    for suffix, group in groups.items():
        if not group.resources and suffix not in in_subtrees:
            yield f"groups[{suffix!r}].resources", "a group without resources must be named in same_subtree"


def _group_faults(path: str, group: ResourceGroup) -> Iterator[tuple[str, str]]:
    if both := _common(group.required, group.forbidden):
        yield f"{path}.forbidden", f"{both} is required as well"
    for number, traits in enumerate(group.any_of):
        if set(traits) <= set(group.forbidden):
            yield f"{path}.any_of[{number}]", "all of these traits are forbidden"


def _common(required: tuple[str, ...], forbidden: tuple[str, ...]) -> str:
    """Return the traits that are in both, joined by commas; an empty text for none."""
    return ", ".join(sorted(set(required) & set(forbidden)))
