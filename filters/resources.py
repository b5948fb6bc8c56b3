"""A host must have room for all that the request's resource groups ask for.

The filter says what is possible at most, and never refuses a host that could serve the request. Where there is one
provider and one group that is the whole truth. Which providers of a tree serve which group is worked out later, for the
best hosts, and a host that has no answer to that is passed over then.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from moorage.model import UNSUFFIXED, RequestSpec, Resources
from moorage.plugin import Answer, ConditionsFilter, Host, HostView


class ResourcesFilter(ConditionsFilter):
    """Passes hosts that may have room for every group: capacity, smallest and largest unit, step."""

    reason = "has not enough room"
    about_room = True

    def why(self, host: Host, request: RequestSpec) -> str:
        """Return of which resource classes ``host`` has too little."""
        suffixed = [group.resources for suffix, group in request.groups.items() if suffix != UNSUFFIXED]
        said = []
        for name, amounts in _by_class([request.resources, *suffixed]).items():
            if not all(host.fits(name, amount) for amount in amounts) or sum(amounts) > host.room(name):
                asked = sum(amounts)
                said.append(f"{name}, {asked:,} asked, {host.room(name):,.10g} free")
        return f"{self.reason}: {'; '.join(said)}" if said else self.reason

    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether each amount fits some provider, and all amounts of a class fit them all together."""
        suffixed = [group.resources for suffix, group in request.groups.items() if suffix != UNSUFFIXED]
        for name, amounts in _by_class([request.resources, *suffixed]).items():
            for amount in set(amounts):
                yield asked.fits(name, amount)
            if len(amounts) > 1:
                yield np.less_equal(sum(amounts), asked.room(name))
        if request.group_policy == "isolate":
            yield from _isolated(asked, suffixed)
        for suffixes in request.apart:
            yield from _isolated(asked, [request.groups[suffix].resources for suffix in set(suffixes)])


def _isolated(asked: Host | HostView, groups: Sequence[Resources]) -> Iterator[Answer]:
    """Yield whether there are enough providers where every group must have its own, by what each asks for."""
    if sum(map(bool, groups)) > 1:
        yield np.logical_not(asked.flat)
    for name, amounts in _by_class(groups).items():
        for amount, count in Counter(amounts).items():
            if count > 1:
                yield np.greater_equal(asked.fitting(name, amount), count)


def _by_class(groups: Sequence[Resources]) -> dict[str, list[int]]:
    amounts: dict[str, list[int]] = defaultdict(list)
    for resources in groups:
        for name, amount in resources.items():
            amounts[name].append(amount)
    return amounts
