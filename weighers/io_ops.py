"""The weigher for the number of servers being started, moved or rebuilt."""

from moorage.model import RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher


class IoOpsWeigher(FormulaWeigher):
    """Weighs a host by the number of servers being started, moved or rebuilt there; fewer are better by default."""

    default_multiplier = -1.0

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:  # noqa: ARG002
        """Return the number of such servers."""
        return hosts.io_ops
