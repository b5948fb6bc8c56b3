"""The weigher for soft-affinity server groups, whose members share a host if there is room."""

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import FloatArray, Host, HostView, Weigher


class ServerGroupSoftAffinityWeigher(Weigher):
    """Weighs a host by the number of other members of a soft-affinity group on it: the more the better."""

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request names a soft-affinity group."""
        return request.server_group is not None and request.server_group.policy == "soft-affinity"

    def weigh(self, host: Host, request: RequestSpec) -> float:
        """Return the number of other members on ``host``."""
        return float(host.group_members_here) if self.concerns(request) else 0.0

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        """Return the score of each row."""
        return view.group_members_here.astype(np.float64) if self.concerns(request) else np.zeros(len(view))
