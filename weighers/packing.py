"""The weigher that fills used hosts before empty ones, so that free resources stay unfragmented."""

from collections import Counter

import numpy as np

from moorage.model import MEMORY_MB, RequestSpec, Resources
from moorage.plugin import Amount, FloatArray, Host, HostView, Weigher

#: More than any share: every used host comes before every empty one.
_OPENING = 2.0


class PackingWeigher(Weigher):
    """Weighs a host by its use after the placement: the mean share of the requested classes; empty hosts come last.

    For use alone: the weighers that spread servers, such as ``ram``, need a multiplier of 0 beside it. The formula was
    chosen by ``moorage bench packing``.
    """

    def weigh(self, host: Host, request: RequestSpec) -> float:
        """Return the score of ``host``."""
        return float(_fullness(host, request))

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        """Return the score of each row."""
        return np.zeros(len(view)) + _fullness(view, request)


def _fullness(hosts: Host | HostView, request: RequestSpec) -> Amount:
    amounts = _amounts(request)
    shares: Amount = 0.0
    for name in sorted(amounts):
        # A host that has none of it cannot serve the request, whatever it weighs.
        capacity = np.maximum(hosts.capacity(name), 1.0)
        shares = shares + np.minimum((hosts.used(name) + amounts[name]) / capacity, 1.0)
    # Every server has memory; a shared pool is used by servers of other hosts as well.
    opening = np.equal(hosts.used(MEMORY_MB), 0) * _OPENING
    fullness: Amount = shares / max(len(amounts), 1) - opening
    return fullness


def _amounts(request: RequestSpec) -> Resources:
    amounts: Counter[str] = Counter()
    for group in request.resource_request.groups.values():
        amounts.update(group.resources)
    return dict(amounts)
