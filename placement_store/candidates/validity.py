"""Validate a request for candidates, independently of any provider."""

from collections.abc import Iterator

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
    yield from _set_faults(request, "same_subtree", "a subtree could hold")
    in_subtrees = {suffix for suffixes in request.same_subtree for suffix in suffixes}
    for suffix, group in request.groups.items():
        if not group.resources and suffix not in in_subtrees:
            yield f"groups[{suffix!r}].resources", "a group without resources must be named in same_subtree"
    yield from _set_faults(request, "apart", "others could be kept from")
    for suffix, group in request.groups.items():
        yield from _group_faults(f"groups[{suffix!r}]", group)
    if both := _common(request.root_required, request.root_forbidden):
        yield "root_forbidden", f"{both} is required as well"
    for number, wanted in enumerate(request.root_member_of):
        if set(wanted) <= set(request.root_not_member_of):
            yield f"root_member_of[{number}]", "all of these aggregates are forbidden"


def _set_faults(request: ResourceRequest, name: str, why: str) -> Iterator[tuple[str, str]]:
    """Yield the faults of a field whose sets name suffixed groups."""
    for number, suffixes in enumerate(getattr(request, name)):
        for suffix in suffixes:
            if suffix == UNSUFFIXED:
                yield f"{name}[{number}]", f"the unsuffixed group has no one provider that {why}"
            if suffix not in request.groups:
                yield f"{name}[{number}]", f"there is no group {suffix!r}"


def _group_faults(path: str, group: ResourceGroup) -> Iterator[tuple[str, str]]:
    if both := _common(group.required, group.forbidden):
        yield f"{path}.forbidden", f"{both} is required as well"
    for number, traits in enumerate(group.any_of):
        if set(traits) <= set(group.forbidden):
            yield f"{path}.any_of[{number}]", "all of these traits are forbidden"


def _common(required: tuple[str, ...], forbidden: tuple[str, ...]) -> str:
    """Return the traits that are in both, joined by commas; an empty text for none."""
    return ", ".join(sorted(set(required) & set(forbidden)))
