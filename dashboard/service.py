"""The page as a service: its sources, and the listener that serves it."""

import logging
from collections.abc import Mapping

from oslo_config import cfg

from dashboard.application import application
from dashboard.sources import Sources
from moorage.addresses import address
from moorage.db.schema_probe import SchemaProbe
from moorage.service.listener import HttpListener
from moorage.service.process import STOP_SECONDS
from moorage.service.readiness import Check, Sampler
from placement_store.schema import MAIN

LOG = logging.getLogger(__name__)

#: A viewer's browser opens several connections; an idle one is kept for some time.
_CONNECTIONS = 500
_KEEP_ALIVE = 75


class DashboardService:
    """Serves the page at the configured address."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._sources: Sources | None = None
        self._listener: HttpListener | None = None
        self._probe: SchemaProbe | None = None

    def start(self) -> None:
        """Read all hosts, and start to listen.

        :raises ConfigurationError: an option has an invalid value, or the service cannot listen on the address.
        :raises SchemaMismatch: the main schema has another revision.
        :raises StoreUnavailable: the database cannot be reached.
        """
        options = self._conf.dashboard
        sources = self._sources = Sources(self._conf)
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
        self._listener = listener
        self._probe = SchemaProbe(self._conf, MAIN)
        LOG.info("The dashboard is served at http://%s/", address(options.host, options.port))

    def checks(self) -> Mapping[str, Check]:
        """Return the readiness checks; before the start there are none."""
        return {} if self._probe is None else {"database": self._probe.check}

    def samplers(self) -> Mapping[str, Sampler]:
        """Return no samplers: the service has no metrics that must be sampled."""
        return {}

    def stop(self) -> None:
        """Stop listening, and close all connections."""
        if self._listener:
            self._listener.stop()
        if self._sources:
            self._sources.audits.stop(STOP_SECONDS / 2)
            self._sources.close()
        if self._probe:
            self._probe.close()
