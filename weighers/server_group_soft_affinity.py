"""The weigher for soft-affinity server groups, whose members share a host if there is room."""

from moorage.model import RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher


class ServerGroupSoftAffinityWeigher(FormulaWeigher):
    """Weighs a host by the number of other members of a soft-affinity group on it: the more the better."""

    #: One member is worth more than all of `ram`, `cpu` and `disk`: their scores are scaled to the range of the hosts
    #: that are left, so a single server makes a difference of up to 3. Failed builds still count more.
    default_multiplier = 1000.0

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request names a soft-affinity group."""
        return request.server_group is not None and request.server_group.policy == "soft-affinity"

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:  # noqa: ARG002
        """Return the number of other members."""
        return hosts.group_members_here
