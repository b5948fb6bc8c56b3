"""The weigher for free memory."""

from moorage.model import MEMORY_MB, RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher


class RamWeigher(FormulaWeigher):
    """Weighs a host by its free memory: the more the better; a negative multiplier fills hosts up instead."""

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:  # noqa: ARG002
        """Return the free memory; 0 without inventory."""
        return hosts.free(MEMORY_MB)
