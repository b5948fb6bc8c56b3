"""The weigher for the number of servers being started, moved or rebuilt."""

from typing import ClassVar

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import FloatArray, Host, HostView, Weigher


class IoOpsWeigher(Weigher):
    """Weighs a host by the number of servers being started, moved or rebuilt there; fewer are better by default."""

    default_multiplier: ClassVar[float] = -1.0

    def weigh(self, host: Host, request: RequestSpec) -> float:  # noqa: ARG002
        """Return the number of such servers on ``host``."""
        return float(host.io_ops)

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:  # noqa: ARG002
        """Return the score of each row."""
        return view.io_ops.astype(np.float64)
