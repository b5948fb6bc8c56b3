"""What the schedulers are told of a cell's hosts."""

import time

from oslo_config import cfg

from conductor.cell_hosts import BATCH, CellHosts, parts
from moorage import context, ids
from moorage.bus import Client
from moorage.messages import ReportHosts
from moorage.model import HostReport
from moorage.service import Periodic

_ALIVE_BATCH = 20_000
#: Seconds between two looks whether something is to be passed on at once.
_TICK = 0.1
#: A report that is not answered soon is overtaken by the next one.
_LONGEST_WAIT = 10.0


class HostForwarder:
    """Tells the schedulers of a cell's hosts, round by round. Nothing of a build depends on it."""

    def __init__(self, conf: cfg.ConfigOpts, cell_uuid: str, hosts: CellHosts, scheduler: Client, service: str) -> None:
        self._cell_uuid = cell_uuid
        self._hosts = hosts
        self._scheduler = scheduler
        self._service = service
        self._interval: float = conf.conductor.report_interval
        self._timeout: float = min(conf.rpc.call_timeout, _LONGEST_WAIT)
        self._told_at: float | None = None
        self._next_round = 0.0
        self._periodic = Periodic("host reports", self._tick, min(_TICK, self._interval))

    def start(self) -> None:
        """Begin with a round."""
        self._periodic.start()

    def stop(self) -> None:
        """End with the round under way."""
        self._periodic.stop()

    def _tick(self) -> None:
        if time.monotonic() < self._next_round and not self._hosts.changed.is_set():
            return
        # A round that fails is not repeated before the next one is due.
        self._next_round = time.monotonic() + self._interval
        self._hosts.changed.clear()
        with context.bound(service=self._service):
            self.forward()

    def forward(self) -> None:
        """Tell a scheduler what has changed, and who has been alive since it was last told.

        :raises Unavailable: no scheduler answers, or the records cannot be reached; the next round says it all again.
        """
        alive, clock = self._hosts.seen_since(self._told_at, self._interval)
        while reports := self._hosts.unacknowledged(BATCH):
            self._report(hosts=tuple(report for report, _number in reports))
            self._hosts.acknowledge(reports)
        for names in parts(alive, _ALIVE_BATCH):
            self._report(alive=tuple(names))
        self._told_at = clock

    def _report(self, hosts: tuple[HostReport, ...] = (), alive: tuple[str, ...] = ()) -> None:
        message = ReportHosts(request_id=ids.fresh(), cell_uuid=self._cell_uuid, hosts=hosts, alive=alive)
        self._scheduler.call(message, timeout=self._timeout)
