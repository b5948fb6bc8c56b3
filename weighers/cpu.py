"""The weigher for free virtual CPUs."""

from moorage.model import VCPU, RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher


class CpuWeigher(FormulaWeigher):
    """Weighs a host by its free virtual CPUs: the more the better; a negative multiplier fills hosts up instead."""

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:  # noqa: ARG002
        """Return the free virtual CPUs; 0 without inventory."""
        return hosts.free(VCPU)
