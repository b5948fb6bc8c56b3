"""A host on which builds keep failing sinks below all others, and rises again."""

from typing import ClassVar

from moorage.model import RequestSpec
from moorage.plugin import FloatArray, Host, HostView, Weigher


class BuildFailureWeigher(Weigher):
    """Weighs a host by how many builds have failed there lately: the fewer the better, and before all other weighers.

    Each failure counts less as time goes by and as builds succeed, and at last no more.
    """

    default_multiplier: ClassVar[float] = 1_000_000.0

    def weigh(self, host: Host, request: RequestSpec) -> float:  # noqa: ARG002
        """Return the failures of ``host`` as a negative number."""
        return 0.0 - host.failed_builds

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:  # noqa: ARG002
        """Return the score of each row."""
        return 0.0 - view.failed_builds
