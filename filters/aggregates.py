"""A host must belong where the request wants to be: to aggregates, or to the tree of a provider that it names."""

from collections.abc import Iterator

import numpy as np

from moorage.model import RequestSpec, ResourceGroup
from moorage.plugin import Answer, ConditionsFilter, Host, HostView, any_of


class AggregatesFilter(ConditionsFilter):
    """Passes hosts with providers in the aggregates that each group is to be served from, and in its tree.

    Aggregates that are asked of the root are asked of the host's own, and of no pool that shares with it.
    """

    reason = "is in none of the aggregates, or not in the tree, that were asked for"

    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether the root belongs where it must, and each group's aggregates and tree are on some provider."""
        for aggregates in request.root_member_of:
            yield any_of(asked.root_in_aggregate(aggregate) for aggregate in aggregates)
        for aggregate in request.root_not_member_of:
            yield np.logical_not(asked.root_in_aggregate(aggregate))
        for group in request.groups.values():
            yield from _of_group(asked, group)


def _of_group(asked: Host | HostView, group: ResourceGroup) -> Iterator[Answer]:
    for aggregates in group.member_of:
        yield any_of(asked.in_aggregate(aggregate) for aggregate in aggregates)
    for aggregate in group.not_member_of:
        # Where there are several providers, those that belong to it may be left aside.
        yield np.logical_not(np.logical_and(asked.flat, asked.in_aggregate(aggregate)))
    if group.in_tree is not None:
        yield asked.has_provider(group.in_tree)
