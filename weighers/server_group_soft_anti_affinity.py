"""The weigher for soft-anti-affinity server groups, whose members are on different hosts if there is room."""

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.server_group_soft_affinity import ServerGroupSoftAffinityWeigher


class ServerGroupSoftAntiAffinityWeigher(ServerGroupSoftAffinityWeigher):
    """Weighs a host by the number of other members of a soft-anti-affinity group on it: the fewer the better."""

    policy = "soft-anti-affinity"

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:
        """Return the number of other members, negated."""
        return np.subtract(0.0, super().score(hosts, request))
