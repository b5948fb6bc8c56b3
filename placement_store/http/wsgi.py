"""The API for any WSGI server, as ``placement_store.http.wsgi:application``.

It is set up at its first request, which is after a server has made its processes, by the file that ``MOORAGE_CONFIG``
names, else by ``/etc/moorage/moorage.conf``.
"""

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from oslo_config import cfg

from moorage import logs, options
from moorage.database import Database
from placement_store import names
from placement_store.http.application import application as make_application
from placement_store.schema import MAIN

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def open_database(conf: cfg.ConfigOpts, pool_size: int) -> Database:
    """Return the main database with all standard names in it, for so many threads.

    :raises SchemaMismatch: its tables are older or newer than this version.
    :raises StoreUnavailable: it cannot be reached.
    """
    database = Database.configured(conf, pool_size=pool_size)
    try:
        MAIN.check(database)
        names.sync(database)
    except Exception:
        database.close()
        raise
    return database


class _SetUpWhenAsked:
    """An application that is made at its first request; one that cannot be made is tried again at the next."""

    def __init__(self) -> None:
        self._making = threading.Lock()
        self._made: WSGIApplication | None = None

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        with self._making:
            if self._made is None:
                self._made = self._make()
        return self._made(environ, start_response)

    def _make(self) -> "WSGIApplication":
        conf = options.new(files=options.find_file(None))
        logs.setup(conf, "placement-api")
        return make_application(conf, open_database(conf, conf.database.pool_size))


application = _SetUpWhenAsked()
