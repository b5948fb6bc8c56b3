"""The weigher that fills used hosts before empty ones, so that free resources stay unfragmented."""

import numpy as np

from moorage.model import MEMORY_MB, RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher

#: More than any share: every used host comes before every empty one.
_OPENING = 2.0


class PackingWeigher(FormulaWeigher):
    """Weighs a host by its use after the placement: the mean share of the requested classes; empty hosts come last.

    For use alone: the weighers that spread servers, such as ``ram``, need a multiplier of 0 beside it. The formula was
    chosen by ``moorage bench packing``.
    """

    def score(self, asked: Host | HostView, request: RequestSpec) -> Amount:
        """Return the mean share, less the opening of an empty host."""
        amounts = request.resource_request.totals()
        shares: Amount = 0.0
        for name, amount in sorted(amounts.items()):
            # A host that has none of it cannot serve the request, whatever it weighs.
            capacity = np.maximum(asked.capacity(name), 1.0)
            shares = shares + np.minimum((asked.used(name) + amount) / capacity, 1.0)
        # Every server has memory; a shared pool is used by servers of other hosts as well.
        opening = np.equal(asked.used(MEMORY_MB), 0) * _OPENING
        fullness: Amount = shares / max(len(amounts), 1) - opening
        return fullness
