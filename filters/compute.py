"""The filter for hosts that are up and enabled."""

from moorage.model import RequestSpec
from moorage.plugin import BoolArray, Filter, Host, HostView


class ComputeFilter(Filter):
    """Passes hosts that are alive, not forced down and not disabled."""

    reason = "is down or disabled"

    def why(self, host: Host, request: RequestSpec) -> str:  # noqa: ARG002
        """Return whether ``host`` is down or disabled."""
        if host.forced_down:
            return "is forced down"
        return "is disabled" if host.up else "is down"

    def passes(self, host: Host, request: RequestSpec) -> bool:  # noqa: ARG002
        """Return whether ``host`` takes new servers."""
        return host.up and not host.forced_down and not host.disabled

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:  # noqa: ARG002
        """Return for each row whether its host passes."""
        return view.up & view.enabled
