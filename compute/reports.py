"""What an agent tells its cell of its hosts: what they have, what they are, and which of them are alive.

Reports never write allocations. What hosts have goes first, and a host is described only once its provider is known, so
that no scheduler meets a host without inventory. The first description of a host says that its agent has started anew;
each answer names the hosts that are to return before they count as up.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from compute.cell_client import CellClient, Interrupted
from compute.driver import Driver
from compute.tracker import Tracker
from moorage import context, errors, ids
from moorage.messages import ReportHostsInCell
from moorage.model import HostReport

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_HOSTS_AT_ONCE = 1000
_NAMES_AT_ONCE = 20_000
# Seconds. Less than other calls wait: at the start of a cloud the conductor's queue may not be there yet, and what was
# sent to it then is lost.
_PATIENCE = 5.0


class Reporter:
    """Tells descriptions that are new or have changed until the cell has them, and then who is alive.

    :param tracker: sees to it that what the hosts have is known first.
    :param returning: is told, after each answer of the cell, which hosts are to return.
    """

    def __init__(
        self,
        driver: Driver,
        cell: CellClient,
        tracker: Tracker,
        returning: Callable[[Collection[str]], None],
        service: str | None = None,
    ) -> None:
        self._driver = driver
        self._cell = cell
        self._tracker = tracker
        self._returning = returning
        self._service = service
        self._ended = threading.Event()
        self._hosts: dict[str, HostReport] = {}

    def report(self) -> None:
        """Tell everything once; what the cell does not answer to is repeated, with the same ids, until :meth:`stop`.

        :raises Unavailable: nobody has taken the word of who is alive; the next report has a newer one.
        """
        with context.bound(service=self._service):
            try:
                self._tracker.track()
                self._tell_hosts()
            except Interrupted:
                return
            self._tell_alive()

    def stop(self) -> None:
        """Repeat nothing any more."""
        self._ended.set()
        self._tracker.stop()

    def _tell_hosts(self) -> None:
        new = [
            report
            for report in self._driver.hosts()
            if self._tracker.is_told(report) and self._hosts.get(report.service_host) != report
        ]
        for batch in _batches(new, _HOSTS_AT_ONCE):
            self._describe(batch)

    def _describe(self, batch: Sequence[HostReport]) -> None:
        """Describe hosts; a batch that is refused is halved, so that a bad member keeps none of the others out."""
        # A cell that has lost its hosts has also lost what it knew of their guests: they start anew for it.
        started = tuple(report.service_host for report in batch if report.service_host not in self._hosts)
        message = ReportHostsInCell(
            request_id=ids.fresh(), agent=self._driver.agent, hosts=tuple(batch), started=started
        )
        try:
            with context.bound(request_id=message.request_id):
                answer = self._cell.until_answered(message, self._ended, timeout=_PATIENCE)
        except (errors.CallerError, errors.PlacementRefused, errors.StaleView) as refusal:
            if len(batch) == 1:
                LOG.error("A report is refused, and comes again with the next: %s (%r)", refusal, batch[0])
                return
            middle = len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                self._describe(half)
        else:
            self._hosts.update((report.service_host, report) for report in batch)
            self._returning(answer.returning)

    def _tell_alive(self) -> None:
        # Sent once: repeated, it would be a lie by the time it arrived.
        alive = sorted(name for name in self._driver.alive() if name in self._hosts)
        for batch in _batches(alive, _NAMES_AT_ONCE):
            message = ReportHostsInCell(request_id=ids.fresh(), agent=self._driver.agent, alive=tuple(batch))
            try:
                self._returning(self._cell.once(message, timeout=_PATIENCE).returning)
            except errors.HostNotFound as lost:
                LOG.warning("The cell has lost its hosts, which are all described anew: %s", lost)
                self._hosts.clear()
                self._tracker.forget()
                return


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
