"""The endpoint of the hosts that the conductors of cells report."""

import logging

from sqlalchemy import exc

from moorage.bus.bus import serves
from moorage.messages import HostsRegistered, ReportHosts
from moorage.service.stored_requests import StoredRequests
from placement_store.db.retries import run_once
from scheduler.registry import reports

LOG = logging.getLogger(__name__)

#: Two concurrent reports may add the same new host; the second one finds its row at its next try.
_REPORT_TRIES = 3


class HostReportEndpoint:
    """Serve the reports of cells, on their own topic; cells of former releases report on topic ``scheduler``."""

    def __init__(self, requests: StoredRequests) -> None:
        self._requests = requests

    @serves(ReportHosts)
    def report_hosts(self, message: ReportHosts) -> HostsRegistered:
        """Answer :class:`~moorage.messages.ReportHosts`.

        :raises CellNotFound: the cell does not exist.
        """
        for _ in range(_REPORT_TRIES - 1):
            try:
                return self._report(message)
            except exc.IntegrityError:
                LOG.info("Another report has registered a host of cell %s first", message.cell_uuid)
        return self._report(message)

    def _report(self, message: ReportHosts) -> HostsRegistered:
        return run_once(self._requests, message, lambda connection: reports.write(connection, message))
