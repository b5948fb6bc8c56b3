"""The filter for hosts with enough free resources for a request's resource groups.

It is an upper bound: it never refuses a host that could serve the request, and is exact for one provider and one group.
The candidate search later finds the providers for each group, but only on the best hosts. It skips a host without a
solution.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from moorage.model import UNSUFFIXED, RequestSpec, Resources
from moorage.plugin import Answer, ConditionsFilter, Host, HostView


class ResourcesFilter(ConditionsFilter):
    """Passes hosts that may have enough for every group, by capacity, minimum and maximum unit, and step size."""

    reason = "has not enough room"
    about_room = True

    def why(self, host: Host, request: RequestSpec) -> str:
        """Return the resource classes of which ``host`` has too little, or enough but not for each amount at once.

        If there are none, it has too few providers for groups that must not share one.
        """
        lacking, uneven = [], []
        for name, amounts in _by_class([request.resources, *_suffixed(request)]).items():
            asked, room = sum(amounts), host.room(name)
            unfit = [amount for amount in amounts if not host.fits(name, amount)]
            if asked > room:
                lacking.append(f"{name}, {asked:,} asked, {room:,.10g} free")
            elif unfit:
                uneven.append(f"has {name}, but cannot give {max(unfit):,} at once ({room:,.10g} free)")
        reasons = [f"{self.reason}: {'; '.join(lacking)}", *uneven] if lacking else uneven
        if not reasons and not all(_apart(host, request)):
            reasons = ["has too few providers for groups that must not share one"]
        return "; ".join(reasons) or self.reason

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether each amount fits one provider, and whether the sum of each class fits all of them together."""
        for name, amounts in _by_class([request.resources, *_suffixed(request)]).items():
            for amount in set(amounts):
                yield hosts.fits(name, amount)
            if len(amounts) > 1:
                yield np.less_equal(sum(amounts), hosts.room(name))
        yield from _apart(hosts, request)


def _suffixed(request: RequestSpec) -> list[Resources]:
    return [group.resources for suffix, group in request.groups.items() if suffix != UNSUFFIXED]


def _apart(hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
    """Yield whether there are enough providers for the groups that must not share one."""
    if request.group_policy == "isolate":
        yield from _isolated(hosts, _suffixed(request))
    for suffixes in request.apart:
        yield from _isolated(hosts, [request.groups[suffix].resources for suffix in set(suffixes)])


def _isolated(hosts: Host | HostView, groups: Sequence[Resources]) -> Iterator[Answer]:
    """Yield whether enough providers fit each amount, for groups that must each have a provider of their own."""
    if sum(map(bool, groups)) > 1:
        yield np.logical_not(hosts.flat)
    for name, amounts in _by_class(groups).items():
        for amount, count in Counter(amounts).items():
            if count > 1:
                yield np.greater_equal(hosts.fitting(name, amount), count)


def _by_class(groups: Sequence[Resources]) -> dict[str, list[int]]:
    amounts: dict[str, list[int]] = defaultdict(list)
    for resources in groups:
        for name, amount in resources.items():
            amounts[name].append(amount)
    return amounts
