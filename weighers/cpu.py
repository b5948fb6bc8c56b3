"""The weigher for free virtual CPUs."""

from moorage.model import VCPU, RequestSpec
from moorage.plugin import FloatArray, Host, HostView, Weigher


class CpuWeigher(Weigher):
    """Weighs a host by its free virtual CPUs: the more the better; a negative multiplier fills hosts up instead."""

    def weigh(self, host: Host, request: RequestSpec) -> float:  # noqa: ARG002
        """Return the free virtual CPUs of ``host``; 0 without inventory."""
        return host.free(VCPU)

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:  # noqa: ARG002
        """Return the score of each row."""
        return view.free(VCPU)
