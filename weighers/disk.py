"""The weigher for free disk."""

from moorage.model import DISK_GB, RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher


class DiskWeigher(FormulaWeigher):
    """Weighs a host by its free disk: the more the better; a negative multiplier fills hosts up instead."""

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:  # noqa: ARG002
        """Return the free disk; 0 without inventory."""
        return hosts.free(DISK_GB)
