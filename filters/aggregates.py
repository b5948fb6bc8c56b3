"""The filter for the aggregates and provider trees that a request names."""

from collections.abc import Collection, Iterator

import numpy as np

from filters.reasoned import Reasoned, ReasonedFilter
from moorage.model import RequestSpec
from moorage.plugin import Host, HostView, any_of


class AggregatesFilter(ReasonedFilter):
    """Passes hosts with providers in the aggregates and the tree that each group requires.

    Aggregates required of the root apply to the host's own root, not to pools that share with it. Reasons name
    aggregates by uuid: `moorage aggregate show` accepts it.
    """

    reason = "is outside of the aggregates, or the tree, that may serve the request"

    def reasoned(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Reasoned]:
        """Yield whether the root is in its aggregates, and whether a provider is in each group's aggregates."""
        for aggregates in request.root_member_of:
            yield any_of(map(hosts.root_in_aggregate, aggregates)), _outside(aggregates)
        for aggregate in request.root_not_member_of:
            yield np.logical_not(hosts.root_in_aggregate(aggregate)), _inside(aggregate)
        for group in request.groups.values():
            for aggregates in group.member_of:
                yield any_of(map(hosts.in_aggregate, aggregates)), _outside(aggregates)
            for aggregate in group.not_member_of:
                # If a host has several providers, the candidate search passes over those in a forbidden aggregate.
                yield np.logical_not(np.logical_and(hosts.flat, hosts.in_aggregate(aggregate))), _inside(aggregate)
            if group.in_tree is not None:
                yield hosts.has_provider(group.in_tree), f"has no provider {group.in_tree}"


def _outside(aggregates: Collection[str]) -> str:
    named = ", ".join(aggregates)
    return f"is not in aggregate {named}" if len(aggregates) == 1 else f"is in none of the aggregates {named}"


def _inside(aggregate: str) -> str:
    return f"is in aggregate {aggregate}, where it must not be"
