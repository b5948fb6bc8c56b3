"""The filter for the aggregates and provider trees that a request names."""

from collections.abc import Collection, Iterator

import numpy as np

from moorage.model import RequestSpec, ResourceGroup
from moorage.plugin import Answer, ConditionsFilter, Host, HostView, any_of


class AggregatesFilter(ConditionsFilter):
    """Passes hosts with providers in the aggregates and the tree that each group requires.

    Aggregates required of the root apply to the host's own root, not to pools that share with it.
    """

    reason = "is outside of the aggregates, or the tree, that may serve the request"

    def why(self, host: Host, request: RequestSpec) -> str:
        """Return the missing and the forbidden aggregates of ``host``, by uuid, as for `moorage aggregate show`."""
        reasons = [_outside(one) for one in request.root_member_of if not any(map(host.root_in_aggregate, one))]
        reasons += [_inside(one) for one in request.root_not_member_of if host.root_in_aggregate(one)]
        for group in request.groups.values():
            reasons += [_outside(one) for one in group.member_of if not any(map(host.in_aggregate, one))]
            reasons += [_inside(one) for one in group.not_member_of if host.flat and host.in_aggregate(one)]
            if group.in_tree is not None and not host.has_provider(group.in_tree):
                reasons.append(f"has no provider {group.in_tree}")
        return "; ".join(dict.fromkeys(reasons)) or self.reason

    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether the root is in its aggregates, and whether a provider is in each group's aggregates."""
        for aggregates in request.root_member_of:
            yield any_of(asked.root_in_aggregate(aggregate) for aggregate in aggregates)
        for aggregate in request.root_not_member_of:
            yield np.logical_not(asked.root_in_aggregate(aggregate))
        for group in request.groups.values():
            yield from _of_group(asked, group)


def _outside(aggregates: Collection[str]) -> str:
    named = ", ".join(aggregates)
    return f"is not in aggregate {named}" if len(aggregates) == 1 else f"is in none of the aggregates {named}"


def _inside(aggregate: str) -> str:
    return f"is in aggregate {aggregate}, where it must not be"


def _of_group(asked: Host | HostView, group: ResourceGroup) -> Iterator[Answer]:
    for aggregates in group.member_of:
        yield any_of(asked.in_aggregate(aggregate) for aggregate in aggregates)
    for aggregate in group.not_member_of:
        # Of several providers, those in a forbidden aggregate need not be used.
        yield np.logical_not(np.logical_and(asked.flat, asked.in_aggregate(aggregate)))
    if group.in_tree is not None:
        yield asked.has_provider(group.in_tree)
