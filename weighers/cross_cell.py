"""The weigher that keeps a moving server in its cell, if there is room."""

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher


class CrossCellWeigher(FormulaWeigher):
    """Weighs the hosts of a server's present cell above all others, if it may move to another cell."""

    default_multiplier = 1_000_000.0

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request names the server's cell and allows another one."""
        wanted = request.requested_destination
        return wanted is not None and wanted.cell is not None and wanted.allow_cross_cell_move

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:
        """Return 1 for the server's own cell, -1 for another one."""
        wanted = request.requested_destination
        return np.where(hosts.in_cell((wanted and wanted.cell) or ""), 1.0, -1.0)
