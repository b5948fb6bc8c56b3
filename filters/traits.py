"""The filter for required and forbidden traits.

Like the filter resources, it checks the host as a whole. The candidate search later finds the providers for each group.
"""

from collections.abc import Iterator

import numpy as np

from filters.reasoned import Reasoned, ReasonedFilter
from moorage.model import RequestSpec
from moorage.plugin import Host, HostView, any_of


class TraitsFilter(ReasonedFilter):
    """Passes hosts that may have every required trait where it is required, and no forbidden one."""

    reason = "has not the required traits"

    def reasoned(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Reasoned]:
        """Yield whether the root meets its traits, and for each group whether its traits are on a provider."""
        for trait in request.root_required:
            yield hosts.root_has_trait(trait), f"has not {trait} on its root"
        for trait in request.root_forbidden:
            yield np.logical_not(hosts.root_has_trait(trait)), f"has {trait} on its root, which it must not"
        for group in request.groups.values():
            for trait in group.required:
                yield hosts.has_trait(trait), f"has not {trait}"
            for traits in group.any_of:
                yield any_of(hosts.has_trait(trait) for trait in traits), f"has none of {', '.join(traits)}"
            for trait in group.forbidden:
                # If a host has several providers, the candidate search passes over those with a forbidden trait.
                has = np.logical_and(hosts.flat, hosts.has_trait(trait))
                yield np.logical_not(has), f"has {trait}, which it must not"
