"""The weigher that avoids hosts with recent failed builds."""

from moorage.model import RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher


class BuildFailureWeigher(FormulaWeigher):
    """Weighs a host by the number of recent failed builds there: the fewer the better, before all other weighers.

    The number decays with time and with successful builds.
    """

    default_multiplier = 1_000_000.0

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:  # noqa: ARG002
        """Return the number of failures, negated."""
        return 0.0 - hosts.failed_builds
