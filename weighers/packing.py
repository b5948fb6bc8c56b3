"""The weigher that fills used hosts before empty ones, so that free resources stay unfragmented."""

import numpy as np

from moorage.model import MEMORY_MB, RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher

#: The penalty of an empty host: more than any share, so that every used host comes before every empty one.
_OPENING = 2.0


class PackingWeigher(FormulaWeigher):
    """Weighs a host by its use after the placement: the mean share of the requested classes; empty hosts come last.

    Use it alone: set the multipliers of weighers that spread servers, such as ``ram``, to 0. The formula was chosen by
    ``moorage bench packing``.
    """

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:
        """Return the mean share, minus the penalty of an empty host."""
        amounts = request.resource_request.totals()
        shares: Amount = 0.0
        for name, amount in sorted(amounts.items()):
            # Avoid a division by zero. The weight of a host without this class does not matter: it cannot serve.
            capacity = np.maximum(hosts.capacity(name), 1.0)
            shares = shares + np.minimum((hosts.used(name) + amount) / capacity, 1.0)
        # Every server has memory. Another class may come from a shared pool, which servers of other hosts use, too.
        opening = np.equal(hosts.used(MEMORY_MB), 0) * _OPENING
        fullness: Amount = shares / max(len(amounts), 1) - opening
        return fullness
