"""The request filter for resource groups in a flavor's extra specs."""

from collections.abc import Mapping
from typing import Literal

from filters.extra_specs import wrong
from filters.requests.extra_spec_groups import GroupSpecs, group_specs, suffix_lists
from filters.requests.merging import changed, unsuffixed, with_amounts, with_groups, with_more, with_unsuffixed
from moorage.model import DISK_GB, MEMORY_MB, UNSUFFIXED, VCPU, RequestSpec
from moorage.plugin import Cloud, RequestFilter

_POLICY = "group_policy"
_SUBTREES = "same_subtree"


class ExtraSpecsRequestFilter(RequestFilter):
    """Translates ``resources``, ``trait``, ``member_of``, ``group_policy`` and ``same_subtree`` into resource groups.

    A resource class in any of these groups replaces the flavor's own amount of that class (Nova: ``ResourceRequest``).
    """

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:  # noqa: ARG002
        """Return the request with the groups of its flavor's extra specs.

        :raises InvalidRequest: an extra spec is malformed, or contradicts the request itself.
        """
        extra_specs = request.flavor.extra_specs
        if not extra_specs:
            return request
        specs = group_specs(extra_specs)
        if _POLICY in extra_specs:
            request = changed(request, group_policy=_policy(request, extra_specs[_POLICY]))
        if _SUBTREES in extra_specs:
            subtrees = suffix_lists(extra_specs[_SUBTREES])
            request = changed(request, same_subtree=with_more(request.same_subtree, subtrees))
        own = specs.pop(UNSUFFIXED, None)
        if own is not None:
            request = _with_own(request, own)
        return _with_suffixed(request, specs) if specs else request


def _with_own(request: RequestSpec, specs: GroupSpecs) -> RequestSpec:
    more = specs.group
    request = with_amounts(request, more.resources, specs.path)
    group = unsuffixed(request)
    conditions = ("required", "forbidden", "member_of", "not_member_of")
    return with_unsuffixed(
        request, **{name: with_more(getattr(group, name), getattr(more, name)) for name in conditions}
    )


def _with_suffixed(request: RequestSpec, specs: Mapping[str, GroupSpecs]) -> RequestSpec:
    """Return the request with the suffixed groups, without the flavor's own amounts of their classes."""
    groups = {suffix: each.group for suffix, each in specs.items()}
    paths = {suffix: each.path for suffix, each in specs.items()}
    named = {name for group in groups.values() for name in group.resources}
    taken_out = named & {VCPU, MEMORY_MB, DISK_GB} - unsuffixed(request).resources.keys()
    request = with_unsuffixed(
        request, resources={**unsuffixed(request).resources, **dict.fromkeys(sorted(taken_out), 0)}
    )
    return with_groups(request, groups, paths, policy_is_said=True)


def _policy(request: RequestSpec, value: str) -> Literal["none", "isolate"]:
    """Return the stricter of the flavor's and the request's group policies."""
    policy = value.strip()
    if policy not in ("none", "isolate"):
        raise wrong(_POLICY, f"{policy!r:.60} is neither none nor isolate")
    return "isolate" if "isolate" in (policy, request.group_policy) else "none"
