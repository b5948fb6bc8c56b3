"""Reports of an agent to its cell: its hosts' provider trees, their descriptions, and heartbeats.

Reports never write allocations. Provider trees go first, and a host is described only once the store has its provider,
so that no scheduler gets a host without inventory. The first description of a host marks a restart of its agent; each
answer names the hosts that have to return before they count as up.
"""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from compute.cell_client import AT_FAULT, CellClient, Interrupted
from compute.cell_messages import halves, in_batches
from compute.driver import Driver
from compute.numbering import Numbering
from compute.returns import Returns
from compute.tracker import Tracker
from moorage import context, errors
from moorage.messages import HostsReported, ReportHostsInCell
from moorage.messages.wire import decode_strictly
from moorage.model import HostReport
from moorage.model.basis import fault_of_name

LOG = logging.getLogger(__name__)

_HOSTS_AT_ONCE = 1000
_NAMES_AT_ONCE = 20_000
# The fields of a description that the cell refuses if they are invalid; attributes may have any value.
_NAMES = ("service_host", "nodename", "compute_node_uuid", "agent", "availability_zone")
# Seconds. Less than the time-out of other calls: at the start of a cloud the conductor's queue may not exist yet, and
# messages to it are lost.
_PATIENCE = 5.0


class Reporter:
    """Sends new and changed descriptions of hosts until the cell has them, and then heartbeats.

    :param tracker: reports the hosts' provider trees first.
    :param returns: returns the hosts that an answer of the cell names.
    """

    def __init__(
        self,
        driver: Driver,
        cell: CellClient,
        tracker: Tracker,
        returns: Returns,
        numbering: Numbering,
        service: str | None = None,
    ) -> None:
        self._driver = driver
        self._cell = cell
        self._tracker = tracker
        self._returns = returns
        self._numbering = numbering
        self._service = service
        self._introduced: str | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        #: The descriptions that the cell has, by service host and node.
        self._hosts: dict[tuple[str, str], HostReport] = {}
        #: The hosts that the schedulers do not have, and whether the cell has lost all hosts. The next report describes
        #: them again, because only its thread uses the tracker.
        self._undescribed: set[str] = set()
        self._lost_all = False
        #: The hosts that belong to other agents, each with its agent: this one reports nothing of them.
        self._of_others: dict[str, str] = {}
        #: When the cell last answered, or when there was nothing to send; monotonic clock.
        self._answered_at = time.monotonic()

    def seconds_unanswered(self) -> float:
        """Return the seconds since the cell last answered a report."""
        return time.monotonic() - self._answered_at

    def report(self) -> None:
        """Describe hosts; repeat unanswered messages, with the same ids, until :meth:`stop`."""
        with context.bound(service=self._service), suppress(Interrupted):
            self._begin_anew()
            hosts = self._without_invalid(self._driver.hosts())
            # Before trees are read: from then on an earlier process of this agent can change nothing.
            self._introduce(hosts)
            # Provider trees before descriptions, so that no scheduler gets a host without inventory.
            self._tracker.track([host for host in hosts if host.service_host not in self._of_others])
            self._report_hosts()

    def beat(self) -> None:
        """Send one heartbeat of the described hosts that are alive.

        :raises Unavailable: no answer; the next heartbeat replaces it.
        """
        with context.bound(service=self._service):
            self._report_alive()

    def stop(self) -> None:
        """Repeat no more messages."""
        self._ended.set()
        self._tracker.stop()

    def _without_invalid(self, hosts: Sequence[HostReport]) -> list[HostReport]:
        """Leave out the hosts whose names or uuids no cell takes: in a message they would hold back the others."""
        with self._lock:
            described = dict(self._hosts)
        return [host for host in hosts if described.get(_key(host)) == host or is_valid(host)]

    def _introduce(self, hosts: Sequence[HostReport]) -> None:
        """Report this incarnation of the agent, so that an earlier one can no longer change what is read next.

        Also ask which of the hosts that are not described yet belong to other agents.
        """
        with self._lock:
            intended = sorted({host.service_host for host in hosts if _key(host) not in self._hosts})
        if not intended and self._introduced == self._numbering.incarnation:
            return
        of_others: dict[str, str] = {}
        for batch in in_batches(intended, _NAMES_AT_ONCE) or ((),):
            message = self._numbering.message(ReportHostsInCell, intended=tuple(batch))
            answer = self._cell.unless_ended(message, self._ended, timeout=_PATIENCE)
            self._take(message, answer)
            self._introduced = message.incarnation
            of_others |= answer.of_others
        for host in sorted(of_others.keys() - self._of_others):
            LOG.error(
                "Host %s belongs to agent %s, which is alive: this agent does not report it", host, of_others[host]
            )
        self._of_others = of_others

    def _take(self, message: ReportHostsInCell, answer: HostsReported) -> None:
        """Handle the cell's answer to a report: return hosts, and note the hosts that must be described again."""
        self._answered_at = time.monotonic()
        if answer.superseded:
            # The cell takes another process as the newer one: an earlier process, or one with the same agent name.
            if self._numbering.begin_anew(str(message.incarnation)):
                LOG.warning("The cell has another process for agent %s: all hosts are described again", message.agent)
                self._lost_all = True
            return
        with self._lock:
            missing = {*answer.undescribed} & {host for host, _node in self._hosts} - self._undescribed
            self._undescribed |= missing
        if missing:
            LOG.warning("%d host(s) are unknown to the schedulers and are described again", len(missing))
        self._returns.note(answer.returning, answer.lives, message.number)

    def _begin_anew(self) -> None:
        """Forget everything that the cell or the schedulers have lost, so that it is reported again."""
        # A heartbeat may set the flag at any moment: a loss that it finds after this line is left to the next report.
        lost_all, self._lost_all = self._lost_all, False
        with self._lock:
            lost = [self._hosts.pop(key) for key in list(self._hosts) if key[0] in self._undescribed]
            self._undescribed.clear()
            if lost_all:
                self._hosts.clear()
        self._tracker.forget(lost)
        if lost_all:
            self._tracker.forget()

    def _report_hosts(self) -> None:
        hosts = self._driver.hosts()
        with self._lock:
            new = [
                report
                for report in hosts
                if report.service_host not in self._of_others
                and self._tracker.is_reported(report)
                and self._hosts.get(_key(report)) != report
            ]
        for batch in in_batches(new, _HOSTS_AT_ONCE):
            self._describe(batch)
        listed = {_key(report) for report in hosts}
        with self._lock:
            # Forget the former names of nodes, so that a node that gets one back is described again.
            if former := self._hosts.keys() - listed:
                named = {_node(report) for key, report in self._hosts.items() if key in listed}
                for key in former:
                    if _node(self._hosts[key]) in named:
                        del self._hosts[key]

    def _describe(self, batch: Sequence[HostReport]) -> None:
        """Describe hosts; halve a refused batch, so that one bad host does not block the others."""
        # A cell that has lost its hosts has also lost their guests' state: for it these hosts are new.
        new = dict.fromkeys(report.service_host for report in batch if _key(report) not in self._hosts)
        message = self._numbering.message(ReportHostsInCell, hosts=tuple(batch), started=tuple(new))
        try:
            with context.bound(request_id=message.request_id):
                answer = self._cell.unless_ended(message, self._ended, timeout=_PATIENCE)
        except AT_FAULT as refusal:
            if len(batch) == 1:
                # Its attributes may be megabytes long, and each report logs this.
                host = batch[0].service_host
                LOG.error("The description of host %s is refused; it is sent again next time: %s", host, refusal)
                return
            for half in halves(batch):
                self._describe(half)
        else:
            if not answer.superseded:
                with self._lock:
                    self._hosts.update((_key(report), report) for report in batch)
            self._take(message, answer)

    def _report_alive(self) -> None:
        # Sent once: a repeated heartbeat would be out of date when it arrives.
        with self._lock:
            described = frozenset(host for host, _node in self._hosts)
        alive = sorted(name for name in self._driver.alive() if name in described)
        if not alive and self._introduced is not None:
            self._answered_at = time.monotonic()  # nothing is sent that could be answered
        for batch in in_batches(alive, _NAMES_AT_ONCE):
            message = self._numbering.message(ReportHostsInCell, alive=tuple(batch))
            try:
                self._take(message, self._cell.once(message, timeout=_PATIENCE))
            except errors.HostNotFound as lost:
                if not self._lost_all:
                    LOG.warning("The cell has lost its hosts; all of them are described again: %s", lost)
                self._lost_all = True
                return
        refused = self._tracker.refused - described
        self._report_withheld(sorted(name for name in self._driver.alive() if name in refused) if refused else [])

    def _report_withheld(self, names: Sequence[str]) -> None:
        """Report hosts that are alive but cannot be described, because their provider trees are refused.

        A tree may be refused until the cell has destroyed a guest on the host.
        """
        for batch in in_batches(names, _NAMES_AT_ONCE):
            message = self._numbering.message(ReportHostsInCell, withheld=tuple(batch))
            # A cell conductor of the previous release does not support this.
            with suppress(errors.InvalidRequest):
                self._take(message, self._cell.once(message, timeout=_PATIENCE))


def is_valid(report: HostReport) -> bool:
    """Return whether a cell takes the names and the uuid of a host; if it does not, log the reason."""
    try:
        decode_strictly(HostReport, {name: getattr(report, name) for name in _NAMES})
    except errors.InvalidRequest as fault:
        LOG.error("Host %r is not reported: its %s is invalid: %s", report.service_host, fault.path[2:], fault.reason)
        return False
    if field := report.misnamed():
        words = fault_of_name(getattr(report, field))
        LOG.error("Host %r is not reported: its %s %s", report.service_host, field, words)
    return field is None


def _key(report: HostReport) -> tuple[str, str]:
    return report.service_host, report.nodename


def _node(report: HostReport) -> tuple[str, str]:
    return report.service_host, report.compute_node_uuid
