"""The weigher that keeps a moving server in its cell, if there is room."""

from typing import ClassVar

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import FloatArray, Host, HostView, Weigher


class CrossCellWeigher(Weigher):
    """Weighs the hosts of a server's present cell above all others, if it may move to another cell."""

    default_multiplier: ClassVar[float] = 1_000_000.0

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request names the server's cell and allows another one."""
        wanted = request.requested_destination
        return wanted is not None and wanted.cell is not None and wanted.allow_cross_cell_move

    def weigh(self, host: Host, request: RequestSpec) -> float:
        """Return 1 for a host of the server's own cell, -1 for another cell's, and 0 where there is no choice."""
        return (1.0 if host.in_cell(_own_cell(request)) else -1.0) if self.concerns(request) else 0.0

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        """Return the score of each row."""
        if not self.concerns(request):
            return np.zeros(len(view))
        return np.where(view.in_cell(_own_cell(request)), 1.0, -1.0)


def _own_cell(request: RequestSpec) -> str:
    wanted = request.requested_destination
    return (wanted and wanted.cell) or ""
