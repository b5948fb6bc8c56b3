"""The weigher for free disk."""

from moorage.model import DISK_GB, RequestSpec
from moorage.plugin import FloatArray, Host, HostView, Weigher


class DiskWeigher(Weigher):
    """Weighs a host by its free disk: the more the better; a negative multiplier fills hosts up instead."""

    def weigh(self, host: Host, request: RequestSpec) -> float:  # noqa: ARG002
        """Return the free disk of ``host``; 0 without inventory."""
        return host.free(DISK_GB)

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:  # noqa: ARG002
        """Return the score of each row."""
        return view.free(DISK_GB)
