"""A filter that raises for hosts, and a weigher whose scores are no numbers, where the request names a leak."""

import math

from moorage.model import RequestSpec
from moorage.plugin import Filter, Host, Weigher


class LeakyFilter(Filter):
    """Divides by zero."""

    reason = "is leaking"

    def concerns(self, request: RequestSpec) -> bool:
        """Tell whether the request has the hint."""
        return "leak" in request.scheduler_hints

    def passes(self, host: Host, request: RequestSpec) -> bool:
        """Raise."""
        return bool(1 // host.instances // 0)


class LeakyWeigher(Weigher):
    """Does not know how to compare hosts."""

    def weigh(self, host: Host, request: RequestSpec) -> float:
        """Return a number, or NaN for the hint."""
        return math.nan if "drip" in request.scheduler_hints else 0.0
