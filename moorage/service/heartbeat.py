"""Heartbeats of a service, for the operator's list of services; nothing else depends on them."""

import logging
import socket
import time
from importlib import metadata

from oslo_config import cfg

from moorage import context, errors, ids, logs
from moorage.bus.bus import Bus
from moorage.messages import ReportService
from moorage.model.inspection import ServiceReport
from moorage.service.process import Periodic

LOG = logging.getLogger(__name__)

#: Seconds to wait for the placement role. Arbitrary, and short: the next report repeats this one, and a service that
#: stops waits for the report in progress.
_PATIENCE = 2.0


class Heartbeat:
    """Reports one service to the placement role, by the main bus, every ``[service] report_interval`` seconds."""

    def __init__(self, conf: cfg.ConfigOpts, bus: Bus, kind: str, name: str, cell_uuid: str | None = None) -> None:
        self._placement = bus.client("placement", timeout=min(_PATIENCE, conf.rpc.call_timeout))
        self._log_name = logs.service_name(conf)
        self._service = ServiceReport(
            name=name, kind=kind, machine=socket.gethostname(), version=metadata.version("moorage"), cell_uuid=cell_uuid
        )
        #: The time since which no report has been answered; None while reports are answered.
        self._silent_since: float | None = time.monotonic()
        self._interval: float = conf.service.report_interval
        self._reports = Periodic(f"presence of {kind} {name}", self._report, conf.service.report_interval)

    def start(self) -> None:
        """Report at once, and then periodically."""
        self._silent_since = time.monotonic()
        self._reports.start()

    def check(self) -> None:
        """Check that the placement role answers; a probe of the process's readiness, which sends nothing.

        :raises NoReply: the placement role has not answered the last reports.
        """
        since = self._silent_since
        silent = 0.0 if since is None else time.monotonic() - since
        if silent > self._interval + _PATIENCE:
            raise errors.NoReply(topic=ReportService.topic, method=ReportService.method, seconds=round(silent))

    def stop(self) -> None:
        """Send a last report, by which an orderly stop can be distinguished from a crash."""
        self._reports.stop()
        # If the last report got no answer, the stop does not wait for another one.
        if self._silent_since is None:
            self._report(stopped=True)

    def _report(self, *, stopped: bool = False) -> None:
        with context.bound(service=self._log_name):
            try:
                self._placement.call(ReportService(request_id=ids.fresh(), service=self._service, stopped=stopped))
                self._silent_since = None
            except errors.MoorageError as fault:
                # Services that need the placement role log it themselves if it does not answer. A placement role of a
                # former release refuses a last report.
                LOG.debug("The heartbeat of this service was not accepted: %s", fault)
                if self._silent_since is None:
                    self._silent_since = time.monotonic()
