"""The weigher for free memory."""

from moorage.model import MEMORY_MB, RequestSpec
from moorage.plugin import FloatArray, Host, HostView, Weigher


class RamWeigher(Weigher):
    """Weighs a host by its free memory: the more the better; a negative multiplier fills hosts up instead."""

    def weigh(self, host: Host, request: RequestSpec) -> float:  # noqa: ARG002
        """Return the free memory of ``host``; 0 without inventory."""
        return host.free(MEMORY_MB)

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:  # noqa: ARG002
        """Return the score of each row."""
        return view.free(MEMORY_MB)
