"""The weigher for the number of servers on a host; by default it has no effect."""

from moorage.model import RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher


class NumInstancesWeigher(FormulaWeigher):
    """Weighs a host by the number of servers placed there: a positive multiplier fills up, a negative spreads."""

    default_multiplier = 0.0

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:  # noqa: ARG002
        """Return the number of servers."""
        return hosts.instances
