"""Servers go where many, or few, others are placed; by default neither counts."""

from typing import ClassVar

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import FloatArray, Host, HostView, Weigher


class NumInstancesWeigher(Weigher):
    """Weighs a host by how many servers are placed there: a positive multiplier fills hosts, a negative one spreads."""

    default_multiplier: ClassVar[float] = 0.0

    def weigh(self, host: Host, request: RequestSpec) -> float:  # noqa: ARG002
        """Return how many servers are placed on ``host``."""
        return float(host.instances)

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:  # noqa: ARG002
        """Return the score of each row."""
        return view.instances.astype(np.float64)
