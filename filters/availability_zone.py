"""A server that asks for an availability zone goes there; one that does not may go anywhere."""

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import BoolArray, Filter, Host, HostView


class AvailabilityZoneFilter(Filter):
    """Passes hosts of the requested availability zone; zones are compared letter by letter."""

    reason = "is in another availability zone"

    def passes(self, host: Host, request: RequestSpec) -> bool:
        """Tell whether ``host`` is in the requested zone."""
        return request.availability_zone is None or host.availability_zone == request.availability_zone

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        """Tell the same of all hosts."""
        if request.availability_zone is None:
            return np.ones(len(view), dtype=np.bool_)
        return view.in_zone(request.availability_zone)
