"""The filter for required and forbidden traits.

As for resources, it checks the host as a whole; the providers that serve each group are searched later.
"""

from collections.abc import Iterator

import numpy as np

from moorage.model import RequestSpec, ResourceGroup
from moorage.plugin import Answer, ConditionsFilter, Host, HostView, any_of


class TraitsFilter(ConditionsFilter):
    """Passes hosts that may have every required trait where it is required, and no forbidden one."""

    reason = "has not the required traits"

    def why(self, host: Host, request: RequestSpec) -> str:
        """Return the missing and the forbidden traits of ``host``."""
        reasons = [f"has not {trait} on its root" for trait in request.root_required if not host.root_has_trait(trait)]
        reasons += [
            f"has {trait} on its root, which it must not"
            for trait in request.root_forbidden
            if host.root_has_trait(trait)
        ]
        for group in request.groups.values():
            reasons += [f"has not {trait}" for trait in group.required if not host.has_trait(trait)]
            reasons += [f"has none of {', '.join(one)}" for one in group.any_of if not any(map(host.has_trait, one))]
            reasons += [
                f"has {trait}, which it must not" for trait in group.forbidden if host.flat and host.has_trait(trait)
            ]
        return "; ".join(dict.fromkeys(reasons)) or self.reason

    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether the root meets its traits, and for each group whether its traits are on a provider."""
        for trait in request.root_required:
            yield asked.root_has_trait(trait)
        for trait in request.root_forbidden:
            yield np.logical_not(asked.root_has_trait(trait))
        for group in request.groups.values():
            yield from _of_group(asked, group)


def _of_group(asked: Host | HostView, group: ResourceGroup) -> Iterator[Answer]:
    for trait in group.required:
        yield asked.has_trait(trait)
    for traits in group.any_of:
        yield any_of(asked.has_trait(trait) for trait in traits)
    for trait in group.forbidden:
        # Of several providers, those with a forbidden trait need not be used.
        yield np.logical_not(np.logical_and(asked.flat, asked.has_trait(trait)))
