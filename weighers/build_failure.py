"""The weigher that avoids hosts with recent failed builds."""

from typing import ClassVar

from moorage.model import RequestSpec
from moorage.plugin import FloatArray, Host, HostView, Weigher


class BuildFailureWeigher(Weigher):
    """Weighs a host by the number of recent failed builds there: the fewer the better, before all other weighers.

    The number decays with time and with successful builds.
    """

    default_multiplier: ClassVar[float] = 1_000_000.0

    def weigh(self, host: Host, request: RequestSpec) -> float:  # noqa: ARG002
        """Return the number of failures of ``host``, negated."""
        return 0.0 - host.failed_builds

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:  # noqa: ARG002
        """Return the score of each row."""
        return 0.0 - view.failed_builds
