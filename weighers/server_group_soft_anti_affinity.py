"""The weigher for soft-anti-affinity server groups, whose members are on different hosts if there is room."""

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import FloatArray, Host, HostView, Weigher


class ServerGroupSoftAntiAffinityWeigher(Weigher):
    """Weighs a host by the number of other members of a soft-anti-affinity group on it: the fewer the better."""

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request names a soft-anti-affinity group."""
        return request.server_group is not None and request.server_group.policy == "soft-anti-affinity"

    def weigh(self, host: Host, request: RequestSpec) -> float:
        """Return the number of other members on ``host``, negated."""
        return 0.0 - host.group_members_here if self.concerns(request) else 0.0

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        """Return the score of each row."""
        members = view.group_members_here if self.concerns(request) else np.zeros(len(view), dtype=np.int64)
        return 0.0 - members.astype(np.float64)
