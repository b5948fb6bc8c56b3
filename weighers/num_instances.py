"""The weigher for the number of servers on a host; by default it does not count."""

from typing import ClassVar

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import FloatArray, Host, HostView, Weigher


class NumInstancesWeigher(Weigher):
    """Weighs a host by the number of servers placed there: a positive multiplier fills up, a negative spreads."""

    default_multiplier: ClassVar[float] = 0.0

    def weigh(self, host: Host, request: RequestSpec) -> float:  # noqa: ARG002
        """Return the number of servers placed on ``host``."""
        return float(host.instances)

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:  # noqa: ARG002
        """Return the score of each row."""
        return view.instances.astype(np.float64)
