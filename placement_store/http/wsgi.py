"""The API for any WSGI server, as ``placement_store.http.wsgi:application``.

It is built at its first request, after the server has forked its processes. The configuration file is the one that
``MOORAGE_CONFIG`` names, else ``/etc/moorage/moorage.conf``.
"""

import logging
import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING

from oslo_config import cfg

from moorage import errors, logs, tracing
from moorage.config import options
from moorage.db.database import BoundedLock, Database
from moorage.db.schemas import SchemaProbe
from moorage.service import probes
from moorage.service.readiness import Readiness
from placement_store.db import names
from placement_store.http.application import application as application_of
from placement_store.http.identity import require_keystone
from placement_store.http.policy import PolicyEnforcer
from placement_store.schema import MAIN

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)


class SchemaCheck:
    """The check of the tables before the first operation: their revision, and the standard names in them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = BoundedLock(self._not_ready)
        self._are_ready = False

    def prepare(self) -> None:
        """Check the tables and insert missing standard names, unless this has succeeded before.

        :raises SchemaMismatch: the tables are older than this version, or too new for it.
        :raises StoreUnavailable: the database cannot be reached.
        """
        if self._are_ready:
            return
        with self._lock.held():
            if not self._are_ready:
                MAIN.check(self._database)
                names.sync(self._database)
                self._are_ready = True

    def _not_ready(self, seconds: float) -> errors.StoreUnavailable:
        return errors.StoreUnavailable(
            schema=self._database.schema, reason=f"its tables could not be looked at within {seconds:g} s"
        )


def prepare_once(conf: cfg.ConfigOpts) -> None:
    """Check libraries, policy file and tables before any worker is forked; an unreachable database is only logged.

    An error in a worker would be printed with a traceback by each of them.

    :raises ConfigurationError: a library that the configuration needs is not installed, Keystone is not configured, or
        the policy file is invalid.
    :raises SchemaMismatch: the tables are older than this version, or too new for it.
    :raises StoreRefused: the database refuses this user.
    """
    tracing.require_library(conf)
    options.main_database(conf)  # first: without any configuration file, the error says that
    if conf.placement_api.auth_strategy == "keystone":
        require_keystone(conf)
    PolicyEnforcer(conf)  # to check the policy file
    database = Database.configured(conf, pool_size=1)
    try:
        SchemaCheck(database).prepare()
    except errors.StoreRefused:
        raise
    except errors.Unavailable as fault:
        LOG.warning("Requests are answered with 503 for now: %s", fault)
    finally:
        database.close()


def make(conf: cfg.ConfigOpts, threads: int) -> "WSGIApplication":
    """Build the API for one process with these threads; it connects to the database at its first request."""
    tracing.configure(conf, "placement-api")
    database = Database.configured(conf, pool_size=threads)
    return _with_probes(application_of(conf, database, SchemaCheck(database).prepare), conf)


def _with_probes(api: "WSGIApplication", conf: cfg.ConfigOpts) -> "WSGIApplication":
    """Add the probes and the metrics to the API; they are served without authentication."""
    readiness, probe = Readiness(), SchemaProbe(conf, MAIN)
    # There are no samplers: all metrics of the API are counters.
    readiness.begin(SimpleNamespace(checks=lambda: {"database": probe.check}, samplers=dict))
    with_metrics: bool = conf.placement_api.serve_metrics
    open_paths = probes.PATHS if with_metrics else probes.PATHS - {probes.METRICS}
    probing = probes.application(readiness, with_metrics=with_metrics, with_reasons=False)
    return probes.route(lambda path: path in open_paths, probing, api)


class _LazyApplication:
    """An application that is built at its first request, and again at the next if that failed."""

    def __init__(self) -> None:
        self._making = threading.Lock()
        self._made: WSGIApplication | None = None

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        with self._making:
            if self._made is None:
                self._made = self._make()
        return self._made(environ, start_response)

    def _make(self) -> "WSGIApplication":
        with logs.held_back():
            conf = options.new(files=options.find_file(None))
            logs.setup(conf, "placement-api")
        return make(conf, conf.database.pool_size)


application = _LazyApplication()
