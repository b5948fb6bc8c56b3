"""Forward descriptions, heartbeats and loads of a cell's hosts to the schedulers."""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.hosts.loads import CellLoads
from conductor.engine.rows import BATCH, batches
from moorage import context, errors, ids
from moorage.bus.bus import Client
from moorage.bus.message_size import in_parts
from moorage.messages import MAX_DESCRIPTION_NUMBER, HostsRegistered, NumberedDescription, ReportHosts
from moorage.model import HostLoad, HostReport
from moorage.service.process import Periodic

LOG = logging.getLogger(__name__)

_ALIVE_BATCH = 20_000
_LOADS_BATCH = 2_000
#: Seconds between two checks for changes that do not wait for the next round.
_TICK = 0.1
#: The longest timeout of a report, in seconds: after that the next round has newer data.
_LONGEST_WAIT = 10.0
#: The timeout of each try of a report, as a fraction of the longest. A scheduler whose database is silent takes as many
#: messages as the others, and is slow to refuse them. So an unanswered report is sent again at once, perhaps to another
#: scheduler. Heartbeats have many short tries: they are quick to write, and hosts look dead if several heartbeats in a
#: row fail. A load that was not reported is reported by the next round. Arbitrary.
_DESCRIPTION_TRIES = (1 / 3, 1 / 3, 1.0)
_HEARTBEAT_TRIES = (0.1,) * 6 + (0.2, 0.2, 0.5)
_LOAD_TRIES = (1 / 3,)
#: Seconds by which the time of a round overlaps with that of the last one: a transaction may commit later than the time
#: that it records. At most the interval of the rounds. Arbitrary, and short: a host that was seen in this second is
#: reported as alive twice.
_OVERLAP = 1.0
#: Seconds after which the loads of all hosts are reported again, changed or not. This corrects a late report of another
#: conductor of the cell, and the load of a host that was deleted and described again.
_ALL_LOADS_EVERY = 300.0

#: Seconds between two requests for the description of the same host.
_ASK_EVERY = 60.0
#: Seconds before a refused description is reported again.
_REFUSED_FOR = 60.0
#: The most refusals of descriptions in one round, so that the heartbeats are not late. To find one host among a
#: thousand takes ten. Arbitrary.
_MOST_REFUSALS = 100

#: The load of a host without instances in progress, failed builds or images.
_IDLE = HostLoad()


class HostForwarder:
    """Sends reports to the schedulers in rounds. No operation waits for them."""

    def __init__(
        self, conf: cfg.ConfigOpts, cell_uuid: str, hosts: CellHosts, loads: CellLoads, scheduler: Client, service: str
    ) -> None:
        self._cell_uuid = cell_uuid
        self._hosts = hosts
        self._loads = loads
        self._scheduler = scheduler
        self._service = service
        self._interval: float = conf.conductor.report_interval
        self._timeout: float = min(conf.rpc.call_timeout, _LONGEST_WAIT)
        self._reported_until: float | None = None
        #: The time of the last request for a description, by host that the schedulers do not know.
        self._asked_at: dict[str, float] = {}
        #: The time of the refusal, by host, node and number of a description.
        self._refused_at: dict[tuple[str, str, int], float] = {}
        #: Whether the last round tried all descriptions, and did not stop after too many refusals.
        self._reached_all = True
        #: The time before which a description is not repeated, by host and node, if another node has its name.
        self._held_until: dict[tuple[str, str], float] = {}
        #: The loads that a scheduler has, without idle ones; null for a host whose load must be reported again.
        self._reported_loads: dict[str, HostLoad | None] = {}
        self._all_loads_at = float("-inf")
        self._next_round = 0.0
        self._ended = threading.Event()
        self._periodic = Periodic("host reports", self._tick, min(_TICK, self._interval))

    def start(self) -> None:
        """Start the rounds; the first begins at once."""
        self._periodic.start()

    def stop(self) -> None:
        """Stop after the current round, which does not repeat its reports any more."""
        self._ended.set()
        self._periodic.stop()

    def _tick(self) -> None:
        if time.monotonic() < self._next_round and not self._hosts.changed.is_set():
            return
        # A failed round is not repeated before the next one is due.
        self._next_round = time.monotonic() + self._interval
        self._hosts.changed.clear()
        with context.bound(service=self._service):
            self.forward()

    def forward(self) -> None:
        """Report the changed descriptions, the hosts seen since the last round, and the changed loads.

        :raises Unavailable: no scheduler answers, or the records cannot be reached; the next round repeats everything.
        :raises MoorageError: the schedulers refuse the heartbeats or the loads.
        """
        alive, clock = self._hosts.forwarded.seen_since(self._reported_until, self._interval)
        try:
            self._forward_descriptions()
        finally:
            # Whatever happens to the descriptions: without heartbeats all hosts would look dead.
            for names in batches(alive, _ALIVE_BATCH):
                self._ask_for(self._report(_HEARTBEAT_TRIES, alive=tuple(names), alive_at=clock).unknown)
            self._reported_until = clock - min(_OVERLAP, self._interval)
            # Do this last: a failed report of loads must not make hosts look dead.
            self._forward_loads()

    def _forward_descriptions(self) -> None:
        """Report the changed descriptions; leave out those that the schedulers refuse.

        :raises Unavailable: no scheduler answers, or the records cannot be reached.
        :raises CellNotFound: the schedulers do not know the cell.
        """
        moment = time.monotonic()
        due = moment - _REFUSED_FOR
        if self._reached_all:
            self._refused_at = {key: refused for key, refused in self._refused_at.items() if refused > due}
        self._held_until = {name: until for name, until in self._held_until.items() if until > due}
        refusals = 0
        reports = self._hosts.forwarded.unacknowledged(BATCH)
        while reports:
            taken = [report for report in reports if _key(report) not in self._refused_at]
            # A description that is held back goes with others of its host, because names pass on in one report.
            due_hosts = {name[0] for name in map(_name, taken) if self._held_until.get(name, moment) <= moment}
            taken = [report for report in taken if _name(report)[0] in due_hosts]
            parts = list(in_parts(taken)) if taken else []
            while parts and refusals < _MOST_REFUSALS:
                part = parts.pop(0)
                try:
                    self._describe(part)
                except (errors.Unavailable, errors.CellNotFound):
                    raise
                except errors.MoorageError as fault:
                    refusals += 1
                    if len(part) == 1:
                        self._refused_at[_key(part[0])] = time.monotonic()
                        LOG.error("The schedulers refuse the description of %s: %s", part[0][0].service_host, fault)
                    else:
                        # One of the hosts is the cause: the others must not be left out with it.
                        parts[:0] = [part[: len(part) // 2], part[len(part) // 2 :]]
            # Report each host once in a round: hosts that change all the time must not delay the heartbeats.
            reports = self._hosts.forwarded.unacknowledged(BATCH, after=reports[-1][0])
        # Until every description had its turn, none that was refused is repeated: they would keep out the later ones.
        self._reached_all = refusals < _MOST_REFUSALS

    def _describe(self, reports: Sequence[tuple[HostReport, int]]) -> None:
        """Report the descriptions of hosts, each with its number."""
        answer = self._report(
            _DESCRIPTION_TRIES,
            hosts=tuple(report for report, _number in reports),
            numbers=tuple(min(number, MAX_DESCRIPTION_NUMBER) for _report, number in reports),
        )
        # The schedulers may have greater numbers, from another conductor of the cell or from lost records: continue
        # from these. Do this first: a refused description then has another number, and is not acknowledged.
        self._hosts.forwarded.number_after(answer.newer, reports)
        self._hosts.forwarded.acknowledge(reports)
        self._ask_for(answer.unknown)
        self._hold_back(answer.newer, reports)
        # Report the loads of these hosts again, because a host may be new to the schedulers. Keep the key of the host:
        # if the host is idle by now, the schedulers may still have its old load.
        described = {report.service_host for report, _number in reports}
        self._reported_loads.update(dict.fromkeys(described & self._reported_loads.keys()))

    def _hold_back(self, newer: Sequence[NumberedDescription], reports: Sequence[tuple[HostReport, int]]) -> None:
        """Begin the next round at once, but repeat a description later if it was refused under its own number before.

        Then another node has its name, perhaps for ever.
        """
        sent = {_name(report): report[1] for report in reports}
        for known in newer:
            name = (known.service_host, known.nodename)
            is_again = name in self._held_until
            if sent.get(name) == known.number:
                self._held_until[name] = time.monotonic() + (_REFUSED_FOR if is_again else 0.0)
                if is_again:
                    continue
            self._hosts.changed.set()

    def _forward_loads(self) -> None:
        """Report the loads that have changed since the last report, and from time to time all of them."""
        if (found := self._loads.now()) is None:
            return
        loads, at = found
        reports_all = time.monotonic() >= self._all_loads_at + _ALL_LOADS_EVERY
        hosts = self._loads.names() if reports_all else {*loads, *self._reported_loads}
        news = {
            host: load
            for host in sorted(hosts)
            if (load := loads.get(host, _IDLE)) != self._reported_loads.get(host, _IDLE) or reports_all
        }
        for part in batches(list(news), _LOADS_BATCH):
            self._report(_LOAD_TRIES, loads={host: news[host] for host in part}, loads_at=at)
            for host in part:
                self._reported_loads[host] = news[host]
                if news[host] == _IDLE:
                    del self._reported_loads[host]
        if reports_all:
            self._all_loads_at = time.monotonic()

    def _ask_for(self, unknown: Sequence[str]) -> None:
        """Request new descriptions of hosts from their agents, with a minimum time between two requests for a host.

        A host that the schedulers refuse, because its compute node belongs to another host, stays unknown to them.
        """
        moment = time.monotonic()
        due = moment - _ASK_EVERY
        # A request that was made long ago has been answered.
        self._asked_at = {name: asked for name, asked in self._asked_at.items() if asked > due - _ASK_EVERY}
        names = [name for name in unknown if self._asked_at.get(name, due) <= due]
        if names:
            LOG.warning("%d host(s) are unknown to the schedulers, including %s", len(names), names[0])
            first = [name for name in names if name not in self._asked_at]
            self._hosts.forwarded.ask_for(names, first=first)
            self._asked_at.update(dict.fromkeys(names, moment))

    def _report(self, tries: Sequence[float], **content: Any) -> HostsRegistered:
        """Send a report until a scheduler has taken it; the timeouts of the tries are fractions of the longest one.

        :raises Unavailable: no try was answered.
        """
        message = ReportHosts(request_id=ids.fresh(), cell_uuid=self._cell_uuid, **content)
        *earlier, last = tries
        for part in earlier:
            try:
                return self._scheduler.call(message, timeout=self._timeout * part)
            except errors.Unavailable as fault:
                if self._ended.is_set():
                    raise
                LOG.info("A report of hosts is sent again: %s", fault)
        return self._scheduler.call(message, timeout=self._timeout * last)


def _key(described: tuple[HostReport, int]) -> tuple[str, str, int]:
    report, number = described
    return report.service_host, report.nodename, number


def _name(described: tuple[HostReport, int]) -> tuple[str, str]:
    return described[0].service_host, described[0].nodename
