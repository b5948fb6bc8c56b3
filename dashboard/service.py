"""The page as a service: its sources, and the listener that serves it."""

import logging
from contextlib import ExitStack

from oslo_config import cfg

from dashboard.application import application
from dashboard.sources import Sources
from moorage.addresses import address
from moorage.db.schemas import SchemaProbe
from moorage.service.listener import HttpListener
from moorage.service.process import STOP_SECONDS, ComposedService
from placement_store.schema import MAIN

LOG = logging.getLogger(__name__)

#: A viewer's browser opens several connections; an idle one is kept for some time.
_CONNECTIONS = 500
_KEEP_ALIVE = 75


class DashboardService(ComposedService):
    """Serves the page at the configured address."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__()
        self._conf = conf

    def _open(self, opened: ExitStack) -> None:
        """Read all hosts, and start to listen.

        :raises ConfigurationError: an option has an invalid value, or the service cannot listen on the address.
        :raises SchemaMismatch: the main schema has another revision.
        :raises StoreUnavailable: the database cannot be reached.
        """
        options = self._conf.dashboard
        probe = SchemaProbe(self._conf, MAIN)
        opened.callback(probe.close)
        sources = Sources(self._conf)
        opened.callback(sources.close)
        opened.callback(sources.audits.stop, STOP_SECONDS / 2)
        # Read all hosts now, so that the first viewer does not wait for them.
        sources.follow()
        listener = HttpListener(
            application(self._conf, sources),
            options.host,
            options.port,
            group="dashboard",
            options="host and port",
            threads=options.threads,
            connections=_CONNECTIONS,
            silent_seconds=_KEEP_ALIVE,
        )
        listener.start()
        opened.callback(listener.stop)
        self._checks = {"database": probe.check}
        LOG.info("The dashboard is served at http://%s/", address(options.host, options.port))
