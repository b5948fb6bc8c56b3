"""A host must have room for all that the request asks for."""

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import BoolArray, Filter, Host, HostView


class ResourcesFilter(Filter):
    """Passes hosts whose inventories can take the request's amounts: capacity, smallest and largest unit, step."""

    reason = "has not enough room"

    def passes(self, host: Host, request: RequestSpec) -> bool:
        """Tell whether every amount fits on ``host``."""
        inventories = host.inventories
        return all(name in inventories and inventories[name].fits(amount) for name, amount in request.resources.items())

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        """Tell the same of all hosts."""
        fits = np.ones(len(view), dtype=np.bool_)
        for name, amount in request.resources.items():
            fits &= view.fits(name, amount)
        return fits
