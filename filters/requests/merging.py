"""Add conditions to requests, and refuse conditions that contradict the request.

A condition that the request already has is not added again, so that a request filter is idempotent.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from msgspec import structs

from moorage import errors
from moorage.model import UNSUFFIXED, RequestSpec, ResourceGroup

T = TypeVar("T")

#: The maximum number of groups of a request (:class:`~moorage.model.RequestSpec`).
MAX_GROUPS = 64
_NOTHING = ResourceGroup()


def image_property(name: str) -> str:
    """Return the path of one of the image's properties."""
    return f"$.image.properties[{name!r}]"


def wrong_property(name: str, reason: str) -> errors.InvalidRequest:
    """Return the error for an invalid image property."""
    return errors.InvalidRequest(path=image_property(name), reason=reason)


def with_more(values: tuple[T, ...], more: Iterable[T]) -> tuple[T, ...]:
    """Return ``values``, followed by those of ``more`` that are not among them."""
    return tuple(dict.fromkeys((*values, *more)))


def changed(request: RequestSpec, **changes: object) -> RequestSpec:
    """Return a request with changes; the same object if they change nothing."""
    if all(getattr(request, name) == value for name, value in changes.items()):
        return request
    return structs.replace(request, **changes)


def unsuffixed(request: RequestSpec) -> ResourceGroup:
    """Return the unsuffixed group of the request itself."""
    return request.groups.get(UNSUFFIXED, _NOTHING)


def with_unsuffixed(request: RequestSpec, **changes: object) -> RequestSpec:
    """Return a request with changes of its unsuffixed group."""
    group = structs.replace(unsuffixed(request), **changes)
    if group == unsuffixed(request):
        return request
    return changed(request, groups={UNSUFFIXED: group, **request.suffixed})


def with_amounts(request: RequestSpec, amounts: Mapping[str, int], path: str) -> RequestSpec:
    """Return a request with these amounts instead of its flavor's; an amount of 0 removes a class.

    :param path: the path of the amounts' origin, for errors.
    :raises InvalidRequest: the request itself has another amount of one of these classes.
    """
    own = unsuffixed(request).resources
    for name, amount in amounts.items():
        if own.get(name, amount) != amount:
            raise errors.InvalidRequest(
                path=path, reason=f"it stands for {amount} {name}, and the request's own group asks for {own[name]}"
            )
    return with_unsuffixed(request, resources={**own, **amounts})


def with_groups(
    request: RequestSpec, groups: Mapping[str, ResourceGroup], paths: Mapping[str, str], *, policy_is_said: bool = False
) -> RequestSpec:
    """Return a request with further groups.

    If it then has several suffixed groups and no group policy, the policy becomes ``none``: the groups may share
    providers. There is no such default if the request had several suffixed groups before: these need an explicit policy
    (Nova has the same default where the flavor has at most one group).

    :param paths: by suffix, the path of each group's origin, for errors.
    :param policy_is_said: several further groups need an explicit policy as well.
    :raises InvalidRequest: the request has another group of the same suffix, or too many groups.
    """
    for suffix, group in groups.items():
        if request.groups.get(suffix, group) != group:
            raise errors.InvalidRequest(path=paths[suffix], reason=f"the request has another group {suffix!r} already")
    together = {**request.groups, **groups}
    if len(together) > MAX_GROUPS:
        raise errors.InvalidRequest(
            path=next(iter(paths.values())), reason=f"that makes more than {MAX_GROUPS} resource groups"
        )
    policy = request.group_policy
    others = len(request.suffixed.keys() - groups.keys())
    if policy is None and others <= 1 < len(groups) + others and not (policy_is_said and len(groups) > 1):
        policy = "none"
    return changed(request, groups=together, group_policy=policy)
