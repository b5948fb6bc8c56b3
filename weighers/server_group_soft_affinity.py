"""The weigher for soft-affinity server groups, whose members share a host if there is room."""

from moorage.model import RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher


class ServerGroupSoftAffinityWeigher(FormulaWeigher):
    """Weighs a host by the number of other members of a soft-affinity group on it: the more the better."""

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request names a soft-affinity group."""
        return request.server_group is not None and request.server_group.policy == "soft-affinity"

    def score(self, asked: Host | HostView, request: RequestSpec) -> Amount:  # noqa: ARG002
        """Return the number of other members."""
        return asked.group_members_here
